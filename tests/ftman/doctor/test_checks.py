"""What the doctor makes of a machine: folders stand in for /proc and /sys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftman.config import Config, EngineSettings, Paths, load_config
from ftman.doctor import checks
from ftman.doctor.bundle import redacted, safe_environ
from ftman.doctor.checks import NOTE, OK, PROBLEM, Finding, Patient, examine
from ftman.supervisor.hardware import Gpu, Gpus

CARD = Gpu("NVIDIA", "RTX", 24 << 30, "580.1")


def patient(tmp_path: Path, **changes: object) -> Patient:
    config = Config(Paths(tmp_path, tmp_path / "models"), port=0, **changes)  # type: ignore[arg-type]
    return Patient(config, {"FT_HOME": str(tmp_path)})


def found(given: Patient, name: str) -> Finding:
    return next(item for item in examine(given) if item.name == name)


@pytest.mark.parametrize(
    ("device", "gpus", "state", "text"),
    [
        ("auto", Gpus((), "no GPU seen"), OK, "models run on the CPU"),
        ("cuda", Gpus((), "no GPU seen"), PROBLEM, "device=cuda"),
        ("auto", Gpus((CARD,), "1 seen"), OK, "device=auto uses it where the installed torch"),
        ("cpu", Gpus((CARD,), "1 seen"), NOTE, "not used: device=cpu says so"),
        ("cuda", Gpus((CARD,), "1 seen"), OK, "RTX 25.8 GB driver 580.1; used"),
        ("auto", Gpus((CARD,), "its driver is not usable: mismatch"), PROBLEM, "mismatch"),
    ],
)
def test_why_the_cpu_is_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gpus: Gpus,
    state: str,
    text: str,
) -> None:
    monkeypatch.setattr(checks.hardware, "gpus", lambda root: gpus)
    finding = found(patient(tmp_path, engine=EngineSettings(device=device)), "gpu")
    assert finding.state == state
    assert text in finding.text


def test_a_full_and_a_slow_disk_are_told(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    full = found(patient(tmp_path, reserve_bytes=1 << 60), "store")
    assert full.state == PROBLEM
    assert "ft gc --explain" in full.hints[0]
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "mounts").write_text(f"C: {tmp_path} 9p rw 0 0\nnone / ext4 rw 0 0\n")
    (root / "proc" / "version").write_text("Linux 5.15 Microsoft-standard-WSL2")
    (root / "proc" / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n")
    slow = replace(patient(tmp_path), root=root)
    assert "9p, which loads slowly" in found(slow, "store").text
    assert "in WSL" in found(slow, "machine").text


def test_damaged_models_come_with_their_remedy(tmp_path: Path) -> None:
    from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model

    catalog = catalog_in(tmp_path)
    model = catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    (model.ftw_path / "weights-00000.ftw").write_bytes(b"cut")
    finding = found(patient(tmp_path), "models")
    assert finding.state == PROBLEM
    assert finding.hints == ("ft verify m:latest --repair",)


def test_settings_tell_of_hidden_variables_and_of_differences(tmp_path: Path) -> None:
    environ = {"FT_HOME": str(tmp_path), "FT_KEEP_ALIVE": "1m", "OLLAMA_KEEP_ALIVE": "9m"}
    given = Patient(load_config(environ), environ, differing=("debug differs",))
    finding = found(given, "settings")
    assert finding.state == NOTE
    assert "keep_alive (FT_KEEP_ALIVE)" in finding.text
    assert "OLLAMA_KEEP_ALIVE is set but FT_KEEP_ALIVE says otherwise" in finding.hints
    assert "debug differs" in finding.hints


def test_a_certificate_authority_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    given = patient(tmp_path)
    environ = {"SSL_CERT_FILE": "/none.pem", "https_proxy": "http://p"}
    finding = found(replace(given, environ=environ), "network")
    assert finding.state == PROBLEM
    assert "proxy by https_proxy" in finding.text


def test_an_open_address_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    finding = found(patient(tmp_path, host="0.0.0.0"), "access")
    assert finding.state == NOTE
    assert "ft key create" in finding.hints[0]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abc.def-123456", "abc.def"),
        ("x-api-key: 12345", "12345"),
        ('{"token": "hunter2"}', "hunter2"),
        ("key hf_abcdefghijkl end", "hf_abcdefghijkl"),
        ("https://me:secret@host/x", "secret"),
        ("GET https://host/f?X-Amz-Signature=abcd", "abcd"),
        ("/home/jane/models", "jane"),
        ("run by jane today", "jane"),
    ],
)
def test_secrets_and_names_are_taken_out(text: str, hidden: str) -> None:
    assert hidden not in redacted(text, "/home/jane", "jane")


def test_words_that_only_look_like_secrets_stay() -> None:
    text = "24 tokens in 3 s, keep_alive 5m, https://host/path"
    assert redacted(text, "/root", "root") == text
    environ = {"FT_API_KEY": "x", "HF_TOKEN": "y", "FT_HOST": "h", "PATH": "/bin"}
    assert safe_environ(environ) == {
        "FT_API_KEY": "[hidden]",
        "HF_TOKEN": "[hidden]",
        "FT_HOST": "h",
    }


def test_a_store_that_cannot_be_used_is_a_problem_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    finding = found(patient(tmp_path), "store")
    assert finding.state == PROBLEM
    assert finding.text == f"{tmp_path / 'models'} cannot be used: {tmp_path / 'models'} is a file"
    assert "FT_MODELS=FOLDER" in finding.hints[0]
