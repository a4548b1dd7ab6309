"""What can be said about installed models. Building them is create.py's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.catalog.modelfile import print_modelfile
from ftman.chat.render import ChatTemplate, capabilities_of
from ftman.chat.template import JinjaTemplates
from ftman.errors import UsageError
from ftman.service.prompts import jinja_text
from ftman.service.replies import format_text
from ftman.service.requests import Shown

_HIDDEN_KEYS = ("general.name", "tokenizer.chat_template")
_REFERENCE_NOTE = "reference path"
_PARAMETER_WIDTH = 30


class Models:
    """Installed models as people and dialects see them."""

    def __init__(self, catalog: Catalog, templates: JinjaTemplates):
        self._catalog = catalog
        self._templates = templates

    async def show(
        self, name: str, *, verbose: bool, parameters: Mapping[str, Any] | None = None
    ) -> Shown:
        """Everything about one model. parameters: over its own, in the printed Modelfile only.

        Raises: NotFoundError, IntegrityError.
        """
        model = self._catalog.find(name)
        info = await asyncio.to_thread(self._catalog.info, model, verbose=verbose)
        jinja = self._jinja(model)
        printed = replace(model, parameters={**model.parameters, **(parameters or {})})
        return Shown(
            model=model,
            modelfile=print_modelfile(printed),
            parameters=parameters_text(model.parameters),
            template=model.template or jinja or "{{ .Prompt }}",
            model_info={k: v for k, v in info.model_info.items() if k not in _HIDDEN_KEYS},
            tensors=info.tensors,
            capabilities=self.capabilities(model),
            reference_path=_reference_formats(model),
            chat_format=format_text(model, ChatTemplate(go=model.template, jinja=jinja)),
        )

    def capabilities(self, model: Model) -> tuple[str, ...]:
        """Stored capabilities, and those its template shows."""
        found = dict.fromkeys(model.capabilities or ("completion",))
        try:
            template = ChatTemplate(go=model.template, jinja=self._jinja(model))
            found |= dict.fromkeys(capabilities_of(template, model.parser))
        except UsageError:
            pass  # a template that cannot be parsed shows nothing; using it tells the error
        return tuple(found)

    def _jinja(self, model: Model) -> str:
        return "" if model.template else jinja_text(model, self._templates)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """PARAMETERs as `show` prints them: one line each, strings quoted."""
    lines = []
    for key, value in parameters.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            lines.append(f"{key:<{_PARAMETER_WIDTH}} {_go_value(item)}")
    return "\n".join(lines)


def _go_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reference_formats(model: Model) -> tuple[str, ...]:
    """Formats without a fast kernel, as the converter noted them."""
    found: list[str] = []
    for note in model.notes:
        if _REFERENCE_NOTE in note:
            found.append(note)
    return tuple(found)
