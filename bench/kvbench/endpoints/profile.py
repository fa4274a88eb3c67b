"""Endpoint profiles: where requests go and how. Given as a URL, by the name `deepseek`, or as a TOML that says more.

    url = "https://api.example.com/v1"     # ends in /v1 or not
    dialect = "auto"                       # auto | openai | vllm | deepseek
    model = "some-model"
    api = "chat"                           # chat | completions
    stream = true
    key_env = "EXAMPLE_API_KEY"            # or key_file = "key.txt" (first line); never the key itself
    ca_file = "ca.pem"                     # instead of the system's certificates
    proxy = "http://proxy.example:3128"    # the environment's proxy variables are not obeyed
    headers = {"x-team" = "bench"}
    extra_body = {temperature = 0.0}
    metrics_urls = ["http://127.0.0.1:8000/metrics"]
    balance = true                         # read the account's balance (GET /user/balance) before and after a run
    tokenizer = "tokenizer.json"           # or "deepseek", "tiktoken:PATH": the model's own, for traces of hash ids
    hash_prompts = "auto"                  # auto | ids | text: what stands for hash ids; auto: ids on vLLM
    [timeouts]
    connect_s = 10.0
    idle_s = 300.0                         # without one byte
    total_s = 3600.0
    [limits]
    requests_per_minute = 600.0
    in_flight = 100
    [expected_hits]
    rule = "block"                         # auto | block | block-replay | units | steps | none
    block_size = 16                        # block, block-replay: tokens; from the server where it says it
    # block-replay: replay_tokens = 128
    # units: granularity_tokens = 64, interval_tokens = 4096, build_s = 10.0, lifetime_s = 300.0

Relative paths start at the profile's own directory. For a plain URL the key is taken from KVBENCH_API_KEY where that is
set, and from no other variable: OPENAI_API_KEY, say, would hand a key to whoever the URL names.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints
from urllib.parse import SplitResult, urlsplit

import msgspec

from kvbench.endpoints.dialects import deepseek
from kvbench.endpoints.secrets import Secret, key_from_env, key_from_file
from kvbench.errors import InputError, UsageError
from kvbench.model import Api, Warning

DEFAULT_KEY_ENV = "KVBENCH_API_KEY"
DEEPSEEK = "deepseek"
"""The built-in profile: DeepSeek's public API."""

_OWN_HEADERS = {
    "authorization": "use key_env or key_file",
    "host": "it follows from url",
    "content-length": "it follows from the body",
    "content-type": "bodies are JSON",
    "transfer-encoding": "bodies have a content-length",
    "connection": "connections are kept alive",
    "accept-encoding": "compression would hide when tokens arrive",
    "x-request-id": "it carries the record's request_id",
}
_OWN_BODY = {
    "messages": "it comes from the trace",
    "prompt": "it comes from the trace",
    "tools": "it comes from the trace",
    "model": "use model",
    "stream": "use stream",
    "stream_options": "it follows from stream",
    "cache_salt": "use --salt",
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds > 0. idle_s: without one byte from the server, the wait for the first one included."""

    connect_s: float = 10.0
    idle_s: float = 300.0
    total_s: float = 3600.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider's own limits, to be kept to; None = none. in_flight: requests at a time."""

    requests_per_minute: float | None = None
    in_flight: int | None = None


class ExpectedHitsRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which hit rule the endpoint follows, and what of it differs from the rule's own defaults (None). auto: block
    where the server is vLLM, says its block size and has one kind of layers; units for DeepSeek's dialect.
    breakpoints: a gateway to Anthropic's API, whose prompts carry cache_control marks."""

    rule: Literal["auto", "block", "block-replay", "units", "steps", "breakpoints", "none"] = "auto"
    block_size: int | None = None
    replay_tokens: int | None = None
    granularity_tokens: int | None = None
    interval_tokens: int | None = None
    build_s: float | None = None
    lifetime_s: float | None = None
    minimum_tokens: int | None = None


_RULES_WITH = {
    "block_size": ("auto", "block", "block-replay"),
    "replay_tokens": ("block-replay",),
    "granularity_tokens": ("units",),
    "interval_tokens": ("units",),
    "build_s": ("units",),
    "lifetime_s": ("units",),
    "minimum_tokens": ("breakpoints",),
}
"""The rules that each parameter of [expected_hits] belongs to."""


class EndpointProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One endpoint, as configured. Holds the name of a key's source, never a key."""

    url: str
    dialect: Literal["auto", "openai", "vllm", "deepseek"] = "auto"
    model: str | None = None
    api: Api = "chat"
    stream: bool = True
    key_env: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    proxy: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    metrics_urls: tuple[str, ...] = ()
    balance: bool = False
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    expected_hits: ExpectedHitsRule = ExpectedHitsRule()
    tokenizer: str | None = None
    hash_prompts: Literal["auto", "ids", "text"] = "auto"

    @property
    def root_url(self) -> str:
        """`url` without a trailing /v1: where /version, /metrics and /tokenize are."""
        return self.url.removesuffix("/v1")

    @property
    def key_source(self) -> str | None:
        """Where the key comes from, in words: "env NAME" or "file PATH"; None = no key."""
        if self.key_env is not None:
            return f"env {self.key_env}"
        return None if self.key_file is None else f"file {self.key_file}"

    def read_key(self) -> tuple[Secret | None, list[Warning]]:
        """The key from its source, with warnings about that source. ConfigError where it cannot be had."""
        if self.key_env is not None:
            return key_from_env(self.key_env), []
        return key_from_file(Path(self.key_file)) if self.key_file is not None else (None, [])

    def safe_dict(self) -> dict[str, Any]:
        """The profile for run.json: header values and URL queries are redacted, the key is named by its source only."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["key_env"], plain["key_file"]
        plain["key"] = None if self.key_source is None else f"from {self.key_source}"
        plain["headers"] = dict.fromkeys(self.headers, "[redacted]")
        plain["metrics_urls"] = [u.partition("?")[0] for u in self.metrics_urls]
        return plain


def load_profile(spec: str) -> EndpointProfile:
    """The profile for `--endpoint`: a http(s) URL, `deepseek`, or the path of an endpoint TOML.

    UsageError where `spec` is neither; InputError, with line and field, for a TOML that cannot be used.
    """
    if "://" in spec:
        try:
            url = _checked_url(spec, "--endpoint")
        except ValueError as error:
            raise UsageError(str(error), hint="for example --endpoint http://127.0.0.1:8000") from None
        return EndpointProfile(url=url, key_env=DEFAULT_KEY_ENV if os.environ.get(DEFAULT_KEY_ENV) else None)
    if spec == DEEPSEEK:
        return _deepseek()
    path = Path(spec)
    if path.is_file():
        return _load_toml(path)
    raise UsageError(
        f"--endpoint {spec!r} is neither a URL nor a file",
        hint="allowed: http://HOST:PORT, https://HOST/v1, deepseek, the path of an endpoint TOML, "
        "or sim[:PRESET][?NAME=VALUE&...]",
    )


def _deepseek() -> EndpointProfile:
    """The public API, as documented. Its own wait for capacity ends first: kvbench gives up no earlier than that."""
    return EndpointProfile(
        url=deepseek.URL,
        dialect="deepseek",
        model=deepseek.MODEL,
        key_env=deepseek.KEY_ENV,
        timeouts=Timeouts(idle_s=deepseek.WAIT_LIMIT_S + 60),
        expected_hits=ExpectedHitsRule(rule="units"),
        tokenizer="deepseek",
    )


def _load_toml(path: Path) -> EndpointProfile:
    try:
        text = path.read_bytes().decode("utf-8")
        raw = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}", path=path) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message = re.sub(r" \(at .*\)$", "", str(error))
        line = int(found[1]) if found else len(text.splitlines())  # otherwise it says "at end of document"
        raise InputError(f"not valid TOML: {message}", path=path, line=line) from None

    def wrong(message: str, field: str) -> InputError:
        return InputError(message, path=path, line=_line_of(text, field), field=field)

    _refuse_unknown(raw, EndpointProfile, "", wrong)
    try:
        profile = msgspec.convert(raw, EndpointProfile)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        field = where.strip("`.").split("[")[0] or "url"
        raise wrong(message + _allowed(field), field) from None
    return _checked(profile, path, wrong)


_TABLES: dict[str, type[msgspec.Struct]] = {"timeouts": Timeouts, "limits": Limits, "expected_hits": ExpectedHitsRule}


def _allowed(field: str) -> str:
    """What a field of fixed choices may be, for the end of a message; nothing for another one."""
    *table, key = field.split(".")
    owner = _TABLES.get(table[0]) if table else EndpointProfile
    choices = get_args(get_type_hints(owner).get(key)) if owner is not None else ()
    named = [choice for choice in choices if isinstance(choice, str)]
    return f"; allowed: {', '.join(named)}" if named else ""


def _refuse_unknown(raw: dict[str, Any], struct: type[msgspec.Struct], prefix: str, wrong: Any) -> None:
    tables = _TABLES if not prefix else {}
    for key, value in raw.items():
        if key not in struct.__struct_fields__:
            allowed = ", ".join(struct.__struct_fields__)
            extra = " (a key is never written into a profile: use key_env or key_file)" if "key" in key else ""
            raise wrong(f"unknown key{extra}; allowed here: {allowed}", prefix + key)
        if key in tables and isinstance(value, dict):
            _refuse_unknown(value, tables[key], f"{key}.", wrong)


def _line_of(text: str, field: str) -> int | None:
    """Line (from 1) on which the dotted `field` is set, as far as a look at the text can tell."""
    *table, key = field.split(".")
    spelled = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*(=|\.)")
    inline = re.compile(rf"\s*{re.escape(table[0])}\s*(=|\.\s*[\"']?{re.escape(key)})") if table else None
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header:
            current = header[1]
            if not table and current.split(".")[0] == key:
                return number
        elif (current == ".".join(table) and spelled.match(line)) or (inline and not current and inline.match(line)):
            return number
    return None


def _checked(profile: EndpointProfile, path: Path, wrong: Any) -> EndpointProfile:
    """`profile` with URLs normalised and relative paths resolved; an InputError for what cannot be meant."""

    def url(text: str, field: str) -> str:
        try:
            return _checked_url(text, field)
        except ValueError as error:
            raise wrong(str(error), field) from None

    for table in ("timeouts", "limits"):
        for name, value in msgspec.to_builtins(getattr(profile, table)).items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise wrong(f"{value} is not above 0", f"{table}.{name}")
    if profile.dialect == "deepseek" and profile.api == "completions":
        raise wrong("DeepSeek's API has chat completions only", "api")
    for name, rules in _RULES_WITH.items():
        value = getattr(profile.expected_hits, name)
        if value is None:
            continue
        if profile.expected_hits.rule not in rules:
            raise wrong(f"only for rule {' or '.join(rules)}", f"expected_hits.{name}")
        if not math.isfinite(value) or value < 0 or (value == 0 and name != "build_s"):
            raise wrong(f"{value} is not above 0", f"expected_hits.{name}")
    if profile.key_env is not None and profile.key_file is not None:
        raise wrong("key_env and key_file are both given; one key, one source", "key_file")
    for name, value in profile.headers.items():
        if name.lower() in _OWN_HEADERS:
            raise wrong(f"not to be set here: {_OWN_HEADERS[name.lower()]}", f"headers.{name}")
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise wrong("not a valid header (printable ASCII only)", f"headers.{name}")
    for name in profile.extra_body:
        if name in _OWN_BODY:
            raise wrong(f"not to be set here: {_OWN_BODY[name]}", f"extra_body.{name}")
    here = path.resolve().parent
    ca_file = None if profile.ca_file is None else here / Path(profile.ca_file).expanduser()
    if ca_file is not None and not ca_file.is_file():
        raise wrong(f"no such file: {ca_file}", "ca_file")
    return msgspec.structs.replace(
        profile,
        url=url(profile.url, "url"),
        proxy=None if profile.proxy is None else url(profile.proxy, "proxy"),
        metrics_urls=tuple(url(u, "metrics_urls") for u in profile.metrics_urls),
        ca_file=None if ca_file is None else str(ca_file),
        key_file=None if profile.key_file is None else str(here / Path(profile.key_file).expanduser()),
        tokenizer=None if profile.tokenizer is None else _tokenizer_path(profile.tokenizer, here),
    )


def _tokenizer_path(spec: str, here: Path) -> str:
    """`spec` with its path, where it has one, made absolute. A path to a file called "deepseek" is ./deepseek."""
    if spec == "deepseek":
        return spec
    kind, colon, path = spec.rpartition("tiktoken:") if spec.startswith("tiktoken:") else ("", "", spec)
    return f"{kind}{colon}{here / Path(path).expanduser()}"


def _checked_url(text: str, field: str) -> str:
    """`text` without trailing slashes; ValueError for what is no http(s) URL. The text itself is shown only where it
    holds no credentials."""
    try:
        parts: SplitResult = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"{field}: not a valid URL; allowed: http://HOST:PORT or https://HOST/PATH") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{field}: credentials inside a URL are refused (they end up in logs); use key_env or key_file in a profile"
        )
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{field}: {parts.scheme}:// is not supported; allowed: http:// and https://")
    if not parts.hostname or any(c.isspace() for c in text) or port == 0:
        raise ValueError(f"{field}: not a valid URL; allowed: http://HOST:PORT or https://HOST/PATH")
    for path in ("/chat/completions", "/completions", "/models"):
        if parts.path.rstrip("/").endswith(path):
            raise ValueError(f"{field}: give the base URL, without {path}: kvbench adds the path itself")
    if parts.fragment or (parts.query and field != "metrics_urls"):
        raise ValueError(
            f"{field}: a URL with ? or # cannot be a base URL; allowed: http://HOST:PORT or https://HOST/PATH"
        )
    return text if parts.query else text.rstrip("/")


def key_hint(profile: EndpointProfile) -> str:
    """What to do about a refused key, naming where it comes from."""
    if profile.key_env is not None:
        return f"check the key in environment variable {profile.key_env}"
    if profile.key_file is not None:
        return f"check the key in {profile.key_file}"
    return f"export {DEFAULT_KEY_ENV}=..., or name key_env in an endpoint TOML"
