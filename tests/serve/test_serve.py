"""`caesura serve` over a real socket: who may ask, what plugins send and read, and what becomes of a client that goes.
The engine is one of a dozen lines.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI

from caesura import model_store, paths, wire
from caesura.client.backend import Condition, EngineBusy, EngineError, EngineFailed, EngineUnavailable
from caesura.client.shared import Engine
from caesura.fim_formats import FORMATS, FimFile, render
from caesura.serve import guard, hosting
from caesura.serve.app import listening
from caesura.serve.bodies import streamed
from caesura.serve.completions import CompletionRequest
from caesura.serve.infill import LlamaInfill

TOKEN = "t" * 43
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PREFIX, SUFFIX = "def area(width, height):\n    return ", "\n\n\nprint(area(2, 3))\n"
NESTED = b'{"prompt": "", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
PATIENCE_S = 30.0
FAKE = Path(__file__).parents[1] / "support" / "processes" / "fake_engine.py"


class FakeEngine:
    """Locks a character of the answer at each step; `answers` are the candidates, `error` is raised after `steps`."""

    def __init__(self) -> None:
        self.condition = Condition("ready", "fake")
        self.jobs: list[wire.Infill] = []
        self.ended: list[str] = []
        self.answers = ["width * height", "height * width"]
        self.error: EngineError | None = None
        self.steps = 1_000
        self.stop = "complete"
        self.step = asyncio.Event()  # not set: waits after the first step
        self.step.set()

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))
        self.jobs.append(job)
        text = self.answers[0]
        try:
            for end in range(1, min(self.steps, len(text))):
                yield wire.Locked(job.job, end, (wire.Fill(text, ((0, end),)),), end, len(text))
                await self.step.wait()
            if self.error:
                raise self.error
            fills = [wire.Fill(text, ((0, len(text)),), 0.5) for text in self.answers]
            yield wire.Done(
                **{
                    "job": job.job,
                    "seq": 99,
                    "holes": (fills[0],),
                    "alternatives": tuple((fill,) for fill in fills[1:]),
                },
                **{"steps": 3, "tokens": wire.Tokens(canvas=1, lookup=2), "stop": self.stop},
                timings=wire.Timings(prefill_ms=20, denoise_ms=30),
            )
        finally:
            self.ended.append(job.job)

    async def idle(self) -> None:
        """Wait until all jobs are over."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.jobs or len(self.ended) < len(self.jobs):
                await asyncio.sleep(0.005)


def client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=PATIENCE_S, verify=False)  # without TLS, whose certificates take long to load


@dataclass
class Door:
    engine: FakeEngine
    port: int
    http: httpx2.AsyncClient

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.address}/v1", api_key=TOKEN, max_retries=0)

    async def post(self, path: str, body: object, headers: Mapping[str, str] = BEARER) -> httpx2.Response:
        return await self.http.post(self.address + path, json=body, headers=headers)

    async def events(self, path: str, body: Mapping[str, object]) -> list[Any]:
        """What is streamed, without the name of each event."""
        answer = await self.post(path, {**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    engine = FakeEngine()
    async with listening(engine, TOKEN, 0) as port, client() as http:  # type: ignore[arg-type]
        yield Door(engine, port, http)


# Who may ask


@pytest.mark.parametrize(
    "headers",
    [
        *({}, {"Authorization": "Bearer"}, {"Authorization": f"Bearer {TOKEN[1:]}"}, {"Authorization": "Bearer é"}),
        *({"Authorization": f"Basic {TOKEN}"}, {"Cookie": f"token={TOKEN}"}, {"X-Api-Key": TOKEN}),
    ],
)
async def test_nobody_is_answered_without_the_token(door: Door, headers: dict[str, str]) -> None:
    sent = httpx2.Headers(headers, encoding="utf-8")
    for path in ("/v1/completions", "/infill", "/nothing", f"/{TOKEN[1:]}/infill", f"/infill?token={TOKEN}"):
        answer = await door.http.post(door.address + path, json={"prompt": PREFIX}, headers=sent)
        assert (answer.status_code, "keys/serve" in answer.json()["error"]["message"]) == (401, True)
    for path in ("/v1/models", "/health"):
        assert (await door.http.get(door.address + path, headers=sent)).status_code == 401
    assert door.engine.jobs == []


async def test_the_token_may_be_the_first_part_of_the_path(door: Door) -> None:
    answer = await door.post(f"/{TOKEN}/v1/completions", {"prompt": PREFIX, "suffix": SUFFIX}, {})
    assert answer.json()["choices"][0]["text"] == "width * height"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "[::1]:1", ""])
async def test_a_name_that_was_rebound_to_us_is_refused(door: Door, host: str) -> None:
    answer = await door.post("/infill", {"prompt": PREFIX}, {**BEARER, "Host": host})
    assert answer.status_code == 403
    assert (await door.post("/infill", {}, {**BEARER, "Host": f"localhost:{door.port}"})).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_of_a_browser_is_refused_though_it_had_the_token(door: Door, headers: dict[str, str]) -> None:
    assert (await door.post("/infill", {"prompt": PREFIX}, {**BEARER, **headers})).status_code == 403
    assert (await door.post(f"/{TOKEN}/infill", {"prompt": PREFIX}, headers)).status_code == 403
    assert door.engine.jobs == []


def test_the_token_stays_the_same_and_is_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "keys", lambda: tmp_path / "keys")
    token = guard.token()
    assert re.fullmatch(r"[\w-]{43}", token)
    assert guard.token() == token
    assert guard.token_file().stat().st_mode & 0o077 == 0
    guard.token_file().chmod(0o644)
    with pytest.raises(paths.UnsafeFolder, match="chmod 600"):
        guard.token()


@pytest.mark.parametrize("content", [b"", b" \n", b"t" * 42, b"t" * 44, b"t" * 42 + b"\xff"])
def test_a_damaged_token_admits_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(paths, "keys", lambda: tmp_path / "keys")
    paths.write(guard.token_file(), content)
    with pytest.raises(paths.DamagedFile, match=r"keys/serve is damaged; delete it and start again\."):
        guard.token()


# What is refused


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {}, "missing required field `prompt`"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "length <= 1"),
        ("/v1/completions", {"prompt": [1]}, "Expected `str`, got `int`"),
        ("/v1/completions", {"prompt": "a", "n": 9}, "Expected `int` <= 8"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, "length >= 1"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "omit them"),
        ("/infill", [], "Expected `object`"),
        ("/infill", {"n_cmpl": 9}, "Field 'n_cmpl': Value must be between 1 <= value <= 8, but got 9"),
        ("/infill", {"json_schema": {"type": "string"}}, "omit them"),
    ],
)
async def test_a_wrong_request_gets_one_error_with_a_sentence(
    door: Door, path: str, body: object, message: str
) -> None:
    answer = await door.post(path, body)
    assert answer.status_code == 400
    (error,) = answer.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert door.engine.jobs == []


@pytest.mark.parametrize(
    ("path", "type", "given"),
    [("/v1/completions", CompletionRequest, {"prompt": "x = "}), ("/infill", LlamaInfill, {"input_prefix": "x = "})],
)
async def test_a_field_that_is_null_is_absent(door: Door, path: str, type: Any, given: dict[str, object]) -> None:
    nothing = dict.fromkeys([*type.__struct_fields__, "seed", "user", "logit_bias", "best_of"])
    inside = {"input_extra": [{"text": "old\n", "filename": None}], "stream_options": {"include_usage": None}}
    for body in ({**nothing, **given}, {**inside, **given}):
        answer = await door.post(path, body)
        assert answer.status_code == 200, answer.text
    assert {job.prefix for job in door.engine.jobs} == {"x = "}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"\\ud800"', b'{"a": "\xff"}', b"[" * 100_000, NESTED])
async def test_what_is_no_json_is_refused(door: Door, body: bytes) -> None:
    for path in ("/v1/completions", "/infill"):
        answer = await door.http.post(door.address + path, content=body, headers=BEARER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_told_or_not(door: Door) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            yield b"x" * hosting.MAX_BODY

    for content in (b"x" * (hosting.MAX_BODY + 1), chunks()):
        answer = await door.http.post(door.address + "/infill", content=content, headers=BEARER)
        assert (answer.status_code, "2,097,152 bytes" in answer.json()["error"]["message"]) == (413, True)
    assert (await door.post("/infill", {})).status_code == 200


async def test_other_paths_and_methods_get_a_json_error_too(door: Door) -> None:
    assert (await door.post("/v1/chat/completions", {})).json()["error"]["code"] == "not_found"
    answer = await door.http.get(door.address + "/infill", headers=BEARER)
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (EngineUnavailable("There is no engine here."), 503, "server_error"),
        (EngineBusy("The engine has too much to do."), 429, "rate_limit_error"),
        (EngineFailed("invalid", "This job breaks a limit."), 400, "invalid_request_error"),
        (EngineFailed("engine_lost", "The connection to the engine was lost."), 500, "server_error"),
    ],
)
async def test_a_failure_of_the_engine_is_a_status_or_the_last_event(
    door: Door, error: EngineError, status: int, kind: str
) -> None:
    door.engine.error, door.engine.steps = error, 1
    for path, stream in (("/v1/completions", False), ("/v1/completions", True), ("/infill", False), ("/infill", True)):
        answer = await door.post(path, {"prompt": PREFIX, "input_suffix": SUFFIX, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json()["error"]["message"] == str(error)
    door.engine.steps = 9
    for path in ("/v1/completions", "/infill"):
        *_, failed = await door.events(path, {"prompt": PREFIX, "suffix": SUFFIX})
        assert failed["error"]["message"] == str(error)
    assert len(door.engine.ended) == len(door.engine.jobs)


async def test_a_fault_of_ours_is_the_last_event_too_and_the_terminal_says_why(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.engine.error, door.engine.steps = ZeroDivisionError("a fault"), 9  # type: ignore[assignment]
    for path in ("/v1/completions", "/infill"):
        *pieces, failed = await door.events(path, {"prompt": PREFIX, "suffix": SUFFIX})
        assert pieces
        assert "`caesura serve` printed" in failed["error"]["message"]
    assert "ZeroDivisionError" in caplog.text


# What plugins read


async def test_the_openai_client_gets_a_completion(door: Door) -> None:
    found = await door.openai.completions.create(model="any", prompt=PREFIX, suffix=SUFFIX, temperature=0.2, seed=1)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, found.model) == ("width * height", "stop", "fake")
    assert found.usage
    assert found.usage.completion_tokens == 3
    (job,) = door.engine.jobs
    assert (job.prefix, job.suffix, job.language) == (PREFIX, SUFFIX, "python")


async def test_the_openai_client_hears_a_stream_whose_pieces_are_the_text(door: Door) -> None:
    stream = await door.openai.completions.create(
        model="any", prompt=PREFIX, suffix=SUFFIX, stream=True, n=2, stream_options={"include_usage": True}
    )
    pieces: dict[int, list[str]] = {0: [], 1: []}
    finished = []
    async for chunk in stream:
        for choice in chunk.choices:
            pieces[choice.index].append(choice.text)
            finished += [choice.finish_reason] if choice.finish_reason else []
    assert {n: "".join(texts) for n, texts in pieces.items()} == {0: "width * height", 1: "height * width"}
    assert len(pieces[0]) > 3
    assert finished == ["stop", "stop"]
    assert chunk.usage
    assert chunk.usage.completion_tokens == 3


async def test_the_openai_client_knows_our_errors_and_our_model(door: Door) -> None:
    assert [model.id async for model in door.openai.models.list()] == ["fake"]
    door.engine.error = EngineBusy("The engine has too much to do.")
    with pytest.raises(APIStatusError, match="too much to do"):
        await door.openai.completions.create(model="any", prompt=PREFIX)


async def test_zed_can_read_an_answer(door: Door) -> None:
    """Its fields of `RawCompletionResponse`, all of which must be there."""
    answer = (await door.post("/v1/completions", {"model": "m", "prompt": PREFIX, "max_tokens": 64, "stop": []})).json()
    assert {"id": str, "object": str, "created": int, "model": str}.items() <= {
        name: type(value) for name, value in answer.items()
    }.items()
    assert [type(answer["usage"][f"{of}_tokens"]) for of in ("prompt", "completion", "total")] == [int] * 3


@pytest.mark.parametrize("format", FORMATS)
async def test_a_prompt_with_a_models_markers_is_the_gap_they_show(door: Door, format: str) -> None:
    file = FimFile("/home/me/shapes.py", "class Shape: ...\n")
    prompt = render(FORMATS[format], PREFIX, SUFFIX, (file,) if FORMATS[format].file else ())
    answer = await door.post("/v1/completions", {"prompt": prompt, "stop": list(FORMATS[format].markers)})
    assert answer.json()["choices"][0]["text"] == "width * height"
    (job,) = door.engine.jobs
    assert (job.prefix, job.suffix) == (PREFIX, SUFFIX)
    expected = (wire.Neighbour("# shapes.py", file.text),) if FORMATS[format].file else ()
    assert job.neighbours == expected


async def test_llama_vim_reads_the_fields_that_it_asks_for(door: Door) -> None:
    """In the form that its own pattern accepts, which is no JSON parser's."""
    fields = ["content", "timings/prompt_ms", "timings/predicted_n", "truncated", "tokens_cached", "nothing", ""]
    answer = await door.post(
        "/infill",
        {
            **{"id_slot": 0, "input_prefix": PREFIX[:25], "prompt": PREFIX[25:], "input_suffix": SUFFIX},
            **{"input_extra": [{"text": "old\n", "time": [1, 2], "filename": "a/b.py"}, {"text": "new\n"}]},
            **{"n_predict": 128, "stop": [], "n_indent": 4, "top_k": 40, "samplers": ["infill"], "stream": False},
            **{"cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 250, "response_fields": fields},
        },
    )
    assert re.match(r'\s*\{.*"content"\s*:"', answer.text)
    assert answer.json() == {
        **{"content": "width * height", "timings/prompt_ms": 20.0, "timings/predicted_n": 3},
        **{"truncated": False, "tokens_cached": 0},
    }
    (job,) = door.engine.jobs
    assert job.prefix == PREFIX
    assert [(near.name, near.text) for near in job.neighbours] == [("# ", "new\n"), ("# b.py", "old\n")]


async def test_what_a_long_prefix_says_far_above_after_the_same_text_is_shown_first(door: Door) -> None:
    begun = "def test_of_the_door():\n    door = Door(height="
    apart = "".join(f"number_{number} = {number}\n" for number in range(400))
    body = {"input_prefix": f"{begun}2)\n    door.opens()\n{apart}{begun}", "input_suffix": ")\n", "n_predict": 16}
    await door.post("/infill", body | {"input_extra": [{"text": "old\n", "filename": "b.py"}]})
    (job,) = door.engine.jobs
    assert [near.name for near in job.neighbours] == ["# ...", "# b.py"]
    assert "door.opens()" in job.neighbours[0].text


async def test_a_request_that_only_warms_a_cache_asks_nothing_of_the_engine(door: Door) -> None:
    warming = {"input_extra": [{"text": "x"}], "n_predict": 0, "response_fields": [""]}
    assert (await door.post("/infill", warming)).json() == {}
    assert door.engine.jobs == []


async def test_llama_vscode_gets_as_many_candidates_as_it_asks_for(door: Door) -> None:
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 128}
    several = (await door.post("/infill", {**body, "n_cmpl": 3})).json()
    assert [one["content"] for one in several] == ["width * height", "height * width"]
    one = (await door.post("/infill", {**body, "n_cmpl": 1})).json()
    assert one["content"] == "width * height"
    timings = one["timings"]
    assert (timings["predicted_n"], timings["predicted_per_second"], timings["prompt_ms"]) == (3, 100.0, 20.0)
    assert isinstance(one["generation_settings"], dict)  # whose n_ctx its status bar reads


async def test_llama_servers_stream_ends_with_an_event_that_says_so(door: Door) -> None:
    *pieces, end = await door.events("/infill", {"input_prefix": PREFIX, "input_suffix": SUFFIX})
    assert "".join(piece["content"] for piece in pieces) == "width * height"
    assert not any(piece["stop"] for piece in pieces)
    assert (end["stop"], end["content"], end["stop_type"], end["timings"]["predicted_n"]) == (True, "", "eos", 3)


async def test_the_last_event_of_llama_servers_stream_has_the_fields_that_were_asked_for(door: Door) -> None:
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "response_fields": ["stop", "timings/predicted_n"]}
    *pieces, end = await door.events("/infill", body)
    assert "".join(piece["content"] for piece in pieces) == "width * height"
    assert end == {"stop": True, "timings/predicted_n": 3}


async def test_health_says_whether_there_is_an_engine(door: Door) -> None:
    answer = await door.http.get(door.address + "/health", headers=BEARER)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    door.engine.condition = Condition("unavailable", message="There is no model 'x'.")
    answer = await door.http.get(door.address + "/health", headers=BEARER)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "There is no model 'x'.")


# How a text ends


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "by"),
    [
        (" * ", "width", " * "),
        (["zz", "ght"], "width * hei", "ght"),
        (["*", "th"], "wid", "th"),
        ("t?", "width * height", ""),
    ],
)
async def test_a_text_ends_before_a_stop_string_and_so_does_the_job(
    door: Door, stop: object, text: str, by: str, stream: bool
) -> None:
    body = {"prompt": PREFIX, "input_prefix": PREFIX, "suffix": SUFFIX, "input_suffix": SUFFIX, "stop": stop}
    if stream:
        events = [event for event in await door.events("/v1/completions", body) if event != "[DONE]"]
        assert "".join(event["choices"][0]["text"] for event in events) == text
    else:
        answer = (await door.post("/v1/completions", body)).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (text, "stop")
    answer = (await door.post("/infill", {**body, "prompt": ""})).json()
    assert (answer["content"], answer["stopping_word"], answer["stop_type"]) == (text, by, "word" if by else "eos")
    await door.engine.idle()


async def test_a_limit_of_tokens_is_the_holes_and_the_reason_that_is_told(door: Door) -> None:
    answer = await door.post("/v1/completions", {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 3})
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    answer = await door.post("/infill", {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 3})
    assert answer.json()["stop_type"] == "limit"
    assert [segment.max_tokens for job in door.engine.jobs for segment in job.segments] == [3, 3]  # type: ignore[union-attr]
    nothing = (await door.post("/v1/completions", {"prompt": PREFIX, "max_tokens": 0})).json()
    assert nothing["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    ("told", "prefix", "suffix", "language"),
    [
        ("", "import os\n\n\ndef f(x):\n    if x:\n        ", "", "python"),
        ("", "package main\n\nfunc f(x int) int {\n\t", "\n}\n", "go"),
        ("", "const f = (x) => {\n  ", "\n};\n", "javascript"),
        ("", "It was a dark and stormy night;\nthe rain fell in torrents.\n", "", "plaintext"),
        ("", "# language: ruby\n# indentation: 2 spaces\nx = ", "", "ruby"),
        ("", "// Path: a.py\n// x = 1\n// src/area.ts\nx = ", "", "typescript"),
        ("rust", "x = 1\n", "", "rust"),
    ],
)
async def test_the_language_is_the_one_that_is_told_or_that_the_text_is_in(
    door: Door, told: str, prefix: str, suffix: str, language: str
) -> None:
    await door.post("/infill", {"input_prefix": prefix, "input_suffix": suffix, "language": told})
    assert door.engine.jobs[0].language == language


async def test_a_client_in_a_hurry_gets_what_is_locked(door: Door) -> None:
    door.engine.step.clear()
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "t_max_predict_ms": 0.001}
    answer = (await door.post("/infill", body)).json()
    assert answer["content"], "one step is enough"
    assert len(answer["content"]) < len("width * height")
    assert answer["stop_type"] == "limit"
    await door.engine.idle()


async def test_what_repeats_the_text_after_the_gap_is_not_sent(door: Door) -> None:
    door.engine.answers = ["width * height)"]
    body = {"prompt": "area = (", "suffix": ")\n"}
    assert (await door.post("/v1/completions", body)).json()["choices"][0]["text"] == "width * height"
    events = [event for event in await door.events("/v1/completions", body) if event != "[DONE]"]
    assert "".join(event["choices"][0]["text"] for event in events) == "width * height"


async def test_secrets_are_covered_in_what_the_engine_reads_and_a_cover_is_never_shown(door: Door) -> None:
    secret = "AKIAQ7Z4XW2M9P5K8T3L"
    door.engine.answers = ['"' + "\u2588" * 20 + '"', "known"]
    body = {
        **{"input_prefix": f'key = "{secret}"\nx = ', "n_cmpl": 2},
        "input_extra": [{"text": f'aws = "{secret}"\n', "filename": "a.py"}, {"text": "A=1\n", "filename": "b/.env"}],
    }
    assert [one["content"] for one in (await door.post("/infill", body)).json()] == ["known"]
    *pieces, _ = await door.events("/infill", body)
    assert "".join(piece["content"] for piece in pieces) == "known"
    for job in door.engine.jobs:
        assert secret not in job.prefix + job.neighbours[0].text
        assert [near.name for near in job.neighbours] == ["# a.py"], "no hidden file"


# Bytes and connections


async def test_characters_come_whole_however_the_bytes_are_cut(door: Door) -> None:
    door.engine.answers = ['"naïve 🎈 – 東京"']
    body = json.dumps({"prompt": "é🎈 = ", "suffix": "\n# 東\n", "stream": True}, ensure_ascii=False).encode()

    async def bytes_one_by_one() -> AsyncGenerator[bytes, None]:
        for n in range(len(body)):
            yield body[n : n + 1]

    url, text = door.address + "/v1/completions", ""
    async with door.http.stream("POST", url, content=bytes_one_by_one(), headers=BEARER) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert text == door.engine.answers[0]
    assert door.engine.jobs[0].prefix == "é🎈 = "


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/infill"])
async def test_a_client_that_goes_frees_the_engine(door: Door, path: str, stream: bool) -> None:
    door.engine.step.clear()
    asking = asyncio.ensure_future(door.post(path, {"prompt": PREFIX, "input_suffix": SUFFIX, "stream": stream}))
    async with asyncio.timeout(PATIENCE_S):
        while not door.engine.jobs:
            await asyncio.sleep(0.005)
    asking.cancel()
    await door.engine.idle()


async def test_a_client_that_goes_before_the_first_byte_frees_the_engine() -> None:
    ended = []

    async def values() -> AsyncGenerator[dict[str, object], None]:
        try:
            yield {}
        finally:
            ended.append(True)

    async def gone(_: object) -> None:
        raise asyncio.CancelledError

    answer = await streamed(kept := values())
    with pytest.raises(asyncio.CancelledError):
        await answer({}, gone, gone)  # type: ignore[arg-type]
    assert ended
    assert kept


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_text_does_not_stall_the_streams_of_others(door: Door, stream: bool) -> None:
    broken = "".join(random.Random(1).choices("(){}[]\"'`;:,. \n\tabc=<>/*#", k=190_000))  # takes seconds to parse
    body = {"input_prefix": broken, "input_suffix": broken, "language": "typescript", "stop": "?", "stream": stream}
    stalls, loop = [0.0], asyncio.get_running_loop()
    asking = asyncio.ensure_future(door.post("/infill", body))
    while not asking.done():
        began = loop.time()
        await asyncio.wait((asking,), timeout=0.01)
        stalls.append(loop.time() - began)
    assert (await asking).status_code == 200
    assert max(stalls) < 1


@asynccontextmanager
async def crowd(port: int, said: bytes) -> AsyncIterator[None]:
    """64 clients that say this and wait, and connect again as soon as they are closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                try:
                    await reader.read()
                finally:
                    writer.close()

    strangers = [asyncio.create_task(one()) for _ in range(64)]
    await asyncio.sleep(0)
    yield
    for stranger in strangers:
        stranger.cancel()
    await asyncio.wait(strangers)


HEAD = b"POST /infill HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", HEAD, HEAD + b"Content-Length: 0\r\n\r\n", HEAD + b"Content-Length: 9\r\n\r\n"],
    ids=["nothing", "half a head", "no token", "half a body"],
)
async def test_a_crowd_without_the_token_keeps_nobody_out(door: Door, said: bytes) -> None:
    door.engine.step.clear()
    stream = asyncio.ensure_future(door.events("/infill", {"prompt": PREFIX}))
    async with crowd(door.port, said.replace(b"PORT", b"%d" % door.port)):
        for _ in range(3):
            async with client() as http:  # a connection of its own
                assert (
                    await http.post(f"{door.address}/infill", json={"n_predict": 0}, headers=BEARER)
                ).status_code == 200
        door.engine.step.set()
        assert "".join(event["content"] for event in await stream) == door.engine.answers[0]


@pytest.mark.long
async def test_fifty_requests_are_answered_among_three_crowds(door: Door) -> None:
    head = HEAD.replace(b"PORT", b"%d" % door.port)
    async with crowd(door.port, b""), crowd(door.port, head), crowd(door.port, head + b"Content-Length: 9\r\n\r\n"):
        for _ in range(50):
            async with client() as http:
                assert (await http.get(f"{door.address}/health", headers=BEARER)).status_code == 200


async def test_connections_are_bounded_and_one_that_says_nothing_is_let_go(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.engine.step.clear()
    monkeypatch.setattr(hosting, "MAX_CONNECTIONS", 2)
    streams = [asyncio.ensure_future(door.events("/infill", {"prompt": PREFIX})) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        while len(door.engine.jobs) < 2:
            await asyncio.sleep(0.005)
    with pytest.raises(httpx2.TransportError):
        await door.post("/infill", {})
    door.engine.step.set()
    await asyncio.gather(*streams)
    monkeypatch.setattr(hosting, "HEAD_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()


async def test_a_head_that_comes_byte_by_byte_does_not_hold_its_connection(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "HEAD_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    closed = asyncio.ensure_future(reader.read())
    async with asyncio.timeout(PATIENCE_S):
        while not closed.done():
            writer.write(b"P")
            await asyncio.wait((closed,), timeout=0.02)
    assert await closed == b""
    writer.close()


# With the real client, supervisor and worker around a fake model


@asynccontextmanager
async def shared_engine() -> AsyncIterator[Engine]:
    """The one that the command finds too."""
    engine = Engine(client="test", command=[sys.executable, str(FAKE), model_store.resolve(model_store.DEFAULT)])
    await engine.start()
    try:
        await engine.ready(PATIENCE_S)
        yield engine
    finally:
        await engine.close()


async def until_live(engine: Engine, jobs: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await engine.status()).live != jobs:
            await asyncio.sleep(0.005)


async def test_the_engine_is_free_of_a_client_that_goes(own_engines: None) -> None:
    async with shared_engine() as engine, listening(engine, TOKEN, 0) as port, client() as http:
        url = f"http://127.0.0.1:{port}/v1/completions"
        asking = asyncio.ensure_future(http.post(url, json={"prompt": "endless"}, headers=BEARER))
        await until_live(engine, 1)
        asking.cancel()
        await until_live(engine, 0)


async def test_the_command_says_where_it_is_answers_and_ends_with_ctrl_c(own_engines: None) -> None:
    async with shared_engine(), client() as http:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "caesura", "serve", "--port", "0"), stdout=PIPE, stderr=PIPE
        )
        assert command.stdout
        said = [(await command.stdout.readline()).decode() for _ in range(3)]
        assert said[1:] == [f"Its token is in {guard.token_file()}\n", "Ctrl-C ends it.\n"]
        found = re.match(r"Caesura answers at (http://127\.0\.0\.1:\d+): ", said[0])
        assert found
        bearer = {"Authorization": f"Bearer {guard.token()}"}
        answer = await http.post(f"{found[1]}/infill", json={"input_prefix": "x = "}, headers=bearer)
        assert answer.json()["content"] == "answer"
        command.send_signal(signal.SIGINT)
        assert [await command.wait(), await command.communicate()] == [0, (b"", b"")]
