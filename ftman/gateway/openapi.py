"""GET /openapi.json: the document made from the route table; only shapes of bodies stand here.

Fields that are not named are allowed everywhere: every dialect ignores what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ftman import __version__
from ftman.gateway.errors import ANTHROPIC, OLLAMA, OPENAI, to_json
from ftman.gateway.routes import Call, Reply, Route

Schema = dict[str, Any]

PATH = "/openapi.json"
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_OBJECT: Schema = {"type": "object"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _body(*required: str, **fields: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": fields}
    return schema | ({"required": list(required)} if required else {})


def _word(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_TEXTS = _list(_TEXT)
_KEEP = _any(_TEXT, _NUMBER)
_THINK = _any(_FLAG, _word("low", "medium", "high", "max"))
_FORMAT = _any(_word("", "json"), _OBJECT)
_FUNCTION = _body("name", name=_TEXT, description=_TEXT, parameters=_OBJECT, strict=_FLAG)
_TOOL = _body("type", "function", type=_word("function"), function=_FUNCTION)
_OPTIONS = _body(
    temperature=_NUMBER, top_k=_WHOLE, top_p=_NUMBER, min_p=_NUMBER, typical_p=_NUMBER,
    repeat_penalty=_NUMBER, repeat_last_n=_WHOLE, presence_penalty=_NUMBER,
    frequency_penalty=_NUMBER, seed=_WHOLE, num_predict=_WHOLE, num_ctx=_WHOLE, num_keep=_WHOLE,
    num_thread=_WHOLE, stop=_TEXTS,
)  # fmt: skip
_OLLAMA_COMMON: dict[str, Schema] = {
    "model": _TEXT, "stream": _FLAG, "options": _OPTIONS, "keep_alive": _KEEP, "think": _THINK,
    "format": _FORMAT, "logprobs": _FLAG, "top_logprobs": _WHOLE,
}  # fmt: skip
_OLLAMA_MESSAGE = _body(
    "role", role=_word("system", "user", "assistant", "tool"), content=_TEXT, thinking=_TEXT,
    images=_TEXTS, tool_name=_TEXT, tool_calls=_list(_body(function=_OBJECT)),
)  # fmt: skip
_PARTS = _list(_body("type", type=_TEXT, text=_TEXT))
_OPENAI_MESSAGE = _body(
    "role", role=_word("system", "developer", "user", "assistant", "tool"),
    content=_any(_TEXT, _PARTS, {"type": "null"}), tool_call_id=_TEXT, reasoning_content=_TEXT,
    tool_calls=_list(_body("function", id=_TEXT, type=_word("function"), function=_body(
        "name", name=_TEXT, arguments=_TEXT))),
)  # fmt: skip
_SAMPLING: dict[str, Schema] = {
    "model": _TEXT, "stream": _FLAG, "temperature": _NUMBER, "top_p": _NUMBER, "top_k": _WHOLE,
    "min_p": _NUMBER, "n": _WHOLE, "seed": _WHOLE, "stop": _any(_TEXT, _TEXTS),
    "presence_penalty": _NUMBER, "frequency_penalty": _NUMBER, "max_tokens": _WHOLE,
    "logit_bias": {"type": "object", "additionalProperties": _NUMBER},
    "stream_options": _body(include_usage=_FLAG),
}  # fmt: skip
_BLOCK = _body(
    "type", type=_word("text", "image", "document", "tool_use", "tool_result", "thinking",
                       "redacted_thinking", "search_result"),
    text=_TEXT, thinking=_TEXT, signature=_TEXT, id=_TEXT, name=_TEXT, input=_OBJECT,
    tool_use_id=_TEXT, content=_any(_TEXT, _PARTS), is_error=_FLAG, source=_OBJECT,
)  # fmt: skip
_ANTHROPIC_FIELDS: dict[str, Schema] = {
    "model": _TEXT,
    "messages": _list(_body("role", "content", role=_word("user", "assistant", "system"),
                            content=_any(_TEXT, _list(_BLOCK)))),
    "system": _any(_TEXT, _PARTS), "max_tokens": _WHOLE, "stream": _FLAG,
    "temperature": _NUMBER, "top_p": _NUMBER, "top_k": _WHOLE, "stop_sequences": _TEXTS,
    "tools": _list(_body("name", "input_schema", name=_TEXT, description=_TEXT,
                         input_schema=_OBJECT, strict=_FLAG, defer_loading=_FLAG)),
    "tool_choice": _body("type", type=_word("auto", "any", "tool", "none"), name=_TEXT,
                         disable_parallel_tool_use=_FLAG),
    "thinking": _body("type", type=_word("enabled", "disabled", "adaptive", "between_tools"),
                      budget_tokens=_WHOLE, display=_TEXT),
    "output_config": _body(effort=_word("low", "medium", "high", "xhigh", "max"), format=_OBJECT),
    "metadata": _OBJECT,
}  # fmt: skip
_EMBED: dict[str, Schema] = {"model": _TEXT, "dimensions": _WHOLE}
_NAME = _body("model", model=_TEXT)
_PULL = _body("model", model=_TEXT, stream=_FLAG, insecure=_FLAG)

# By path without /v1, which OpenAI's and Anthropic's routes have with and without.
_BODIES: dict[str, Schema] = {
    "/api/generate": _body("model", prompt=_TEXT, suffix=_TEXT, system=_TEXT, template=_TEXT,
                           raw=_FLAG, context=_IDS, images=_TEXTS, **_OLLAMA_COMMON),
    "/api/chat": _body("model", messages=_list(_OLLAMA_MESSAGE), tools=_list(_TOOL),
                       **_OLLAMA_COMMON),
    "/api/embed": _body("model", input=_any(_TEXT, _TEXTS), truncate=_FLAG, options=_OPTIONS,
                        keep_alive=_KEEP, **_EMBED),
    "/api/embeddings": _body("model", model=_TEXT, prompt=_TEXT, options=_OPTIONS),
    "/api/show": _body("model", model=_TEXT, verbose=_FLAG),
    "/api/copy": _body("source", "destination", source=_TEXT, destination=_TEXT),
    "/api/delete": _NAME, "/api/pull": _PULL, "/api/push": _PULL,
    "/api/create": _body("model", **{
        "model": _TEXT, "from": _TEXT, "system": _TEXT, "template": _TEXT, "stream": _FLAG,
        "files": {"type": "object", "additionalProperties": _TEXT}, "parameters": _OBJECT,
        "license": _any(_TEXT, _TEXTS), "messages": _list(_OLLAMA_MESSAGE), "quantize": _TEXT}),
    "/chat/completions": _body(
        "messages", messages=_list(_OPENAI_MESSAGE), tools=_list(_TOOL),
        tool_choice=_any(_word("none", "auto", "required"), _OBJECT),
        parallel_tool_calls=_FLAG, response_format=_body("type", type=_TEXT, json_schema=_OBJECT),
        reasoning_effort=_TEXT, max_completion_tokens=_WHOLE, logprobs=_FLAG,
        top_logprobs=_WHOLE, **_SAMPLING),
    "/completions": _body("prompt", prompt=_any(_TEXT, _TEXTS, _IDS, _list(_IDS)), echo=_FLAG,
                          suffix=_TEXT, logprobs=_WHOLE, **_SAMPLING),
    "/embeddings": _body("input", input=_any(_TEXT, _TEXTS, _IDS, _list(_IDS)),
                         encoding_format=_word("float", "base64"), **_EMBED),
    "/responses": _body(
        "input", model=_TEXT, input=_any(_TEXT, _list(_OBJECT)), instructions=_TEXT,
        stream=_FLAG, store=_FLAG, previous_response_id=_TEXT, tools=_list(_OBJECT),
        tool_choice=_any(_TEXT, _OBJECT), text=_OBJECT, reasoning=_OBJECT,
        max_output_tokens=_WHOLE, temperature=_NUMBER, top_p=_NUMBER),
    "/messages": _body("model", "messages", "max_tokens", **_ANTHROPIC_FIELDS),
    "/messages/count_tokens": _body("model", "messages", **_ANTHROPIC_FIELDS),
    "/tokenize": _body(model=_TEXT, prompt=_TEXT, add_special_tokens=_FLAG,
                       return_token_strs=_FLAG, messages=_list(_OPENAI_MESSAGE)),
    "/detokenize": _body("tokens", model=_TEXT, tokens=_IDS),
}  # fmt: skip
_QUERIES = {"/api/ft/search": "q", "/api/ft/health": "deep", "/tokenizer_info": "model"}
_ERRORS = {
    OLLAMA: _body("error", error=_TEXT, code=_TEXT, hint=_TEXT),
    OPENAI: _body("error", error=_body("message", "type", "param", "code", message=_TEXT)),
    ANTHROPIC: _body(
        "type", "error", type=_word("error"), error=_body("type", "message", message=_TEXT)
    ),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a route table."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.removesuffix("*") + ("{tail}" if route.path.endswith("*") else "")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ft", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {f"{name}_error": schema for name, schema in _ERRORS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    said = (route.handler.__doc__ or "").strip().splitlines()
    error = {"schema": {"$ref": f"#/components/schemas/{route.dialect}_error"}}
    operation: dict[str, Any] = {
        "tags": [route.dialect],
        "summary": said[0] if said else f"{route.method} {route.path}",
        "responses": {
            "200": {"description": "The answer; a stream of objects or events where one is asked."},
            "default": {
                "description": "An error, in the words of the dialect.",
                "content": {"application/json": error},
            },
        },
    }
    bare = route.path.removeprefix("/v1")
    parameters = [_parameter("tail", "path")] if route.path.endswith("*") else []
    parameters += [_parameter(_QUERIES[bare], "query")] if bare in _QUERIES else []
    if parameters:
        operation["parameters"] = parameters
    if route.body == "whole":
        schema = _BODIES.get(bare, _OBJECT)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    elif route.body == "stream":
        operation["requestBody"] = {"content": {"application/octet-stream": {}}}
    return operation


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": _TEXT}


def with_document(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The routes and the one that tells of them."""

    async def openapi(call: Call) -> Reply:
        """GET /openapi.json: this document."""
        return Reply(to_json(document(everything)), media_type="application/json")

    everything = (*routes, Route("GET", PATH, openapi))
    return everything
