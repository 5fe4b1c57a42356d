"""Which files stay hidden, what is covered in those that do not, and which characters a proposal may hold."""

import re
import signal
import string
import sysconfig
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura.server.context.secrets import FILLER, Ignore, concealed, masked, reveals

ROOT = Path(__file__).parents[2]
RANDOM = "q7Zr2Kx9Vb4Nw8Ty3Lm6Hs1Pd5Gf0JcAeRuQiWo7Yt"  # drawn once for these tests; opens nothing


def drawn(size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(alphabet[(7 * i * i + 3 * i + ord(RANDOM[i % len(RANDOM)])) % len(alphabet)] for i in range(size))


def covered(text: str) -> list[str]:
    """What the mask hides of a text."""
    found = masked(text)
    assert len(found) == len(text)
    assert [c for c in found if c in "\r\n"] == [c for c in text if c in "\r\n"]
    return [text[run.start() : run.end()] for run in re.finditer(FILLER + "+", found)]


# Hidden files


@pytest.mark.parametrize(
    "path",
    [
        *(".env", ".env.local", "sub/.ENV", "prod.env", "certs/site.pem", "deploy.key", "id_rsa", "id_ed25519.bak"),
        *("cert.p12", "old.PFX", "team.kdbx", "credentials", "credentials.json", "config/credentials.yml.enc"),
        *(".netrc", ".pgpass", ".npmrc", ".pypirc", "secrets.yaml", "secrets.toml", ".git/config", ".ssh/config"),
        *("home/me/.aws/credentials", "main.tfstate", "prod.tfvars", "sub\\.env"),
    ],
)
def test_files_that_hold_secrets_are_hidden(path: str) -> None:
    assert Ignore().hides(path)


@pytest.mark.parametrize(
    "path",
    [
        *("config.json", "settings.json", "app/settings.py", "environment.py", "env.ts", ".env.example", "keys.py"),
        *(
            "src/credentials.py",
            "credentials/store.go",
            "secrets.py",
            "monkey.py",
            "key.ts",
            "id_rsa.pub",
            "a.keyboard",
        ),
        *("package.json", "docker-compose.yml", ".gitignore", ".github/workflows/ci.yml", "tokenizer.json", ""),
    ],
)
def test_files_of_ordinary_projects_are_not(path: str) -> None:
    assert not Ignore().hides(path)


def test_the_users_patterns_add_to_the_built_in_ones_and_may_take_them_back() -> None:
    ignore = Ignore(["vault/", "*.SQL", "!.env.ci"])
    assert ignore.hides("a/vault/x.py")
    assert ignore.hides("dump.sql")
    assert not ignore.hides(".env.ci")
    assert ignore.hides(".env")


def test_the_rules_of_a_project_hide_more_and_reveal_nothing() -> None:
    ignore = Ignore([], ["# what is generated", "gen/*", "!gen/keep.py", "/top.py", "!.env", ""])
    assert ignore.hides("gen/a.py")
    assert not ignore.hides("gen/keep.py")
    assert ignore.hides("top.py")
    assert not ignore.hides("sub/top.py")
    assert ignore.hides(".env")


def test_a_rule_holds_for_each_way_to_write_a_name_where_case_does_not_count() -> None:
    assert Ignore([], ["Private/"], caseless=True).hides("PRIVATE/a.py")
    assert not Ignore([], ["Private/"]).hides("PRIVATE/a.py")


@pytest.mark.parametrize("wrong", ["!", "\\", "[z-a]", "[[:alpha:]]", "\ud800"])
def test_a_pattern_that_is_none_is_said_and_passed_over(wrong: str) -> None:
    for ignore in (Ignore([wrong, "*.log"]), Ignore([], [wrong, "*.log"])):
        assert ignore.problems == [f"Ignore pattern {wrong!r} is not in gitignore syntax; correct or remove it."]
        assert ignore.hides("a.log")
        assert not ignore.hides("a.py")


@pytest.mark.parametrize(
    ("rule", "path", "hidden"),
    [
        ("*a" * 30 + "b", "a" * 250, "a" * 40 + "b"),
        ("*" * 30 + "b", "a" * 250, "ab"),
        ("**/a/" * 30 + "b", "a/" * 2000, "a/" * 40 + "b"),
        ("*/" * 100 + "b", "a/" * 2000, "a/" * 100 + "b"),
    ],
)
def test_no_rule_of_a_project_takes_long(rule: str, path: str, hidden: str) -> None:
    def late(number: int, frame: object) -> None:
        raise TimeoutError("this rule takes long")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        ignore = Ignore([], [rule])
        assert (ignore.hides(path), ignore.hides(hidden)) == (False, True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_comments_and_empty_lines_are_no_patterns() -> None:
    ignore = Ignore([], ["# generated", ""] * 1000 + ["gen/"])
    assert (ignore.problems, ignore.hides("gen/a.py"), ignore.hides("a.py")) == ([], True, False)


@pytest.mark.parametrize(
    "rules", [["a"] * 1001, ["a" * 1001], ["*" + "*".join("ab" * 10) + f"{i}*" for i in range(1000)], None]
)
def test_where_the_rules_of_a_project_cannot_be_followed_all_its_files_are_hidden(rules: list[str] | None) -> None:
    ignore = Ignore([], rules)
    [problem] = ignore.problems
    assert "hides all files" in problem
    assert ignore.hides("main.py")


def test_a_name_that_is_no_unicode_is_matched_too() -> None:
    assert Ignore([], ["private*"]).hides("private\udcff.py")


# Secrets

TOKENS = [
    "AKIA" + drawn(16, string.ascii_uppercase + string.digits),
    "ghp_" + drawn(36),
    "github_pat_" + drawn(40),
    "glpat-" + drawn(20),
    "xoxb-" + drawn(12, string.digits) + "-" + drawn(24),
    "sk_live_" + drawn(24),
    "sk-" + drawn(48),
    "sk-ant-" + drawn(40),
    "AIza" + drawn(35),
    "SG." + drawn(22) + "." + drawn(43),
    "npm_" + drawn(36),
    "pypi-AgE" + drawn(60),
    "hf_" + drawn(34),
    "dop_v1_" + drawn(64, "0123456789abcdef"),
    "shpat_" + drawn(32, "0123456789abcdef"),
    "eyJ" + drawn(20) + ".eyJ" + drawn(60) + "." + drawn(43),
]


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:8])
@pytest.mark.parametrize("line", ['client = Client("%s")\n', "curl -H 'X: %s' host\n", "# used to be %s\n"])
def test_tokens_of_known_services_are_covered_wherever_they_stand(token: str, line: str) -> None:
    assert covered(line % token) == [token]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('password = "hunter2"', "hunter2"),
        ("DB_PASSWORD = 'p@$$w0rd!'", "p@$$w0rd!"),
        ('{"password": "Tr0ub4dor&3"}', "Tr0ub4dor&3"),
        ("connect(user='me', passwd='s3same,open')", "s3same,open"),
        ('const clientSecret: string = "MyV3ry0wn";', "MyV3ry0wn"),
        ("passphrase := `four5words`", "four5words"),
        (f'api_key = "{RANDOM}"', RANDOM),
        ('api_key = "gRsuGwFdyIuNQnSZdwh3"', "gRsuGwFdyIuNQnSZdwh3"),
        (f"const authToken = '{RANDOM}';", RANDOM),
        (f'headers["x-api-key"] = "{RANDOM}"', RANDOM),
        (f"API_TOKEN={RANDOM}", RANDOM),
        (f"  aws_secret_access_key: {RANDOM}", RANDOM),
        ("export DB_PASSWORD=hunter42", "hunter42"),
        (f'password = "{RANDOM}', RANDOM),  # its end is not typed yet
        (f"Authorization: Bearer {RANDOM}", RANDOM),
        ('url = "postgres://app:s3cr3t-pw@db.local:5432/app"', "s3cr3t-pw"),
        ("redis://:hunter2@cache:6379/0", "hunter2"),
        ('dsn = "Server=db;User Id=app;Password=Xy12zz;"', "Xy12zz"),
        (
            "https://hooks.slack.com/services/T0AB12CD3/B0EF45GH6/abcdEFGHijklMNOPqrstUVWX",
            "T0AB12CD3/B0EF45GH6/abcdEFGHijklMNOPqrstUVWX",
        ),
    ],
)
def test_secrets_with_a_name_are_covered_and_nothing_else_of_the_line(text: str, secret: str) -> None:
    assert covered(f"before = 1\n{text}\nafter = 2\n") == [secret]


@pytest.mark.parametrize(
    "text",
    [
        'password = getpass.getpass("Password: ")',
        'password = os.environ["DB_PASSWORD"]',
        'connect(password=options["password"])',
        'PASSWORD_FIELD = "password"',
        'password = "{password}"',
        'password = "${DB_PASSWORD}"',
        'password = "<your password>"',
        'password = "change_me"',
        'token = "identifier"',
        'key = "first_name"',
        'cache_key = "users:all:active"',
        'api_key = "YOUR_API_KEY_HERE_1234"',
        "secret = load_secret(path)",
        'raise ValueError("password must have 8 characters")',
        'sha = "9fceb02d0ae598e95dc970b74767f19372d61af8"',
        'uuid = "123e4567-e89b-12d3-a456-426614174000"',
        '"integrity": "sha512-' + drawn(86) + '=="',
        'image = "' + drawn(200) + '"',
        'className="sk-folding-cube-animation-block"',
        "url = f'postgres://{user}:{password}@{host}/db'",
        'url = "https://example.com:8080/@scope/name"',
        'if line.startswith("-----BEGIN RSA PRIVATE KEY-----"):\n    return parse(line)\n',
        "git clone git@github.com:me/project.git",
    ],
)
def test_ordinary_code_is_left_as_it_is(text: str) -> None:
    assert covered(text) == []


def test_a_private_key_is_covered_line_by_line() -> None:
    lines = [drawn(64), drawn(64), drawn(23) + "="]
    text = "\r\n".join(
        ["a = 1", "-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----", "b = 2", ""]
    )
    assert covered(text) == lines


def test_a_private_key_in_a_string_is_covered() -> None:
    lines = [drawn(64), drawn(64), drawn(20)]
    escaped = "\\n".join(lines)
    text = f'{{"key": "-----BEGIN PRIVATE KEY-----\\n{escaped}\\n-----END PRIVATE KEY-----\\n", "id": 7}}'
    assert covered(text) == lines
    text = "".join(
        f'    "{line}\\n"\n' for line in ("-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----")
    )
    assert covered(text) == lines


def test_half_a_private_key_is_covered_too() -> None:
    lines = [drawn(64), drawn(64), drawn(64)]
    text = "x = 1\n-----BEGIN PRIVATE KEY-----\n" + "\n".join(lines)
    assert covered(text) == lines
    text = "\n".join(lines) + "\n-----END PRIVATE KEY-----\nx = 1\n"
    assert covered(text) == lines


def test_a_cursor_within_a_secret_reveals_neither_half() -> None:
    token = "ghp_" + drawn(36)
    before, _, after = concealed(f'x = "{token[:20]}', (), f'{token[20:]}"\ny = 1\n')
    assert before == 'x = "' + FILLER * 20
    assert after == FILLER * 20 + '"\ny = 1\n'


PIECES = (
    "password",
    "=",
    '"',
    "'",
    " ",
    "\n",
    "\r\n",
    "-----BEGIN PRIVATE KEY-----",
    RANDOM,
    "😀",
    "\\n",
    "api_key",
    ":",
)


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_a_mask_keeps_every_offset_and_line_and_is_done_once(text: str) -> None:
    covered(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "piece",
    [
        "-----BEGIN PRIVATE KEY-----\n" + "+" * 500,
        "eyJ" + "a" * 500 + ".",
        "token=" * 100,
        "a.b-c_" * 100,
        "://" + "a" * 80,
        "password: " + "[" * 300,
        '"' * 300,
        "key" + " " * 500 + "=",
        "\\n" * 200,
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    """Linear in the text: 64,000 code points of the worst take well under the seconds that a square would."""
    text = piece * (64_000 // len(piece))
    start = time.process_time()
    masked(text)
    assert time.process_time() - start < 1.0


def test_this_repository_and_the_standard_library_have_nothing_to_cover() -> None:
    ours = [
        path
        for folder in ("caesura", "server", "engine", "kernels", "bench", "docs")
        for path in (ROOT / folder).rglob("*.*")
    ]
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-f]*.py"))
    lines = found = 0
    for path in [path for path in ours if path.suffix in (".py", ".md", ".toml")] + library:
        text = path.read_text("utf-8", errors="replace").replace(FILLER, "#")
        lines += text.count("\n")
        found += len(covered(text))
    assert lines > 20_000
    assert found <= lines // 10_000


# Proposals


def test_a_proposal_with_a_filler_reveals_that_something_was_covered() -> None:
    assert reveals(f'password = "{FILLER * 7}"', "x = 1\n", "")
    assert not reveals("password = read()", "x = 1\n", "")
    assert not reveals(f'bar = "{FILLER}"', f'full = "{FILLER}"\n', "")
