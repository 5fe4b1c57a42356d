"""Which parts of other files the model is shown beside a place, and in which order."""

import pytest

from caesura import wire
from caesura.server.context import neighbours
from caesura.server.context.neighbours import MAX_TEXT, History, NeighbourBudget, RecentEdit, Snapshot, Target, choose
from caesura.server.context.secrets import FILLER
from caesura.server.text.document import Document

MODELS = '''"""Models."""

import datetime


class Account:
    """Money of one owner."""

    def __init__(self, owner: str, limit: int = 0) -> None:
        self.owner = owner
        self.balance = 0
        self.limit = limit

    def deposit(self, amount: int, note: str = "") -> int:
        self.balance += amount
        return self.balance

    def withdraw(self, amount: int) -> int:
        if amount > self.balance + self.limit:
            raise ValueError(amount)
        self.balance -= amount
        return self.balance


def open_account(owner: str) -> Account:
    """A new account without a limit."""
    return Account(owner)


RATE = 0.02
'''

UNRELATED = "def paint(canvas, colour):\n    canvas.fill(colour)\n    canvas.stroke(colour)\n    canvas.close()\n" * 6


def target(source: str, language: str = "python", name: str = "main.py") -> Target:
    prefix, _, suffix = source.partition("|")
    return Target(name, language, prefix, suffix)


def python(name: str, text: str, **more: bool | tuple[str, ...]) -> Snapshot:
    return Snapshot(name, "python", text, **more)  # type: ignore[arg-type]


def test_a_function_that_is_used_is_shown_with_its_head_and_first_lines() -> None:
    (found, *_) = choose(
        target("from models import open_account\n\nmine = open_account(|"), [python("models.py", MODELS, imported=True)]
    )
    assert found.name == "# models.py"
    assert found.text.startswith('def open_account(owner: str) -> Account:\n    """A new account without a limit."""\n')


def test_a_class_behind_the_dot_is_shown_as_the_heads_of_its_methods() -> None:
    source = 'account = Account("me")\n' + "# ...\n" * 30 + "account.|"
    (found, *_) = choose(target(source), [python("models.py", MODELS)])
    assert found.text.startswith("class Account:\n    def __init__(self, owner")
    assert "    def deposit(self, amount: int" in found.text
    assert "    def withdraw(self, amount: int) -> int:" in found.text
    assert "self.balance -=" not in found.text


def test_a_class_before_the_bracket_is_shown_with_its_whole_constructor_first() -> None:
    text = (
        "class Box:\n    def area(self, size):\n        return size\n\n"
        "    def __init__(\n        self,\n        width: int,\n        depth: int = 3,\n    ) -> None:\n        pass\n"
    )
    small = NeighbourBudget(each=90)
    (found, *_) = choose(target("size = 4\nbox = Box.|"), [python("box.py", text)], budget=small)
    assert found.text.startswith("class Box:\n    def area(self, size):")
    (found, *_) = choose(target("size = 4\nbox = Box(|"), [python("box.py", text)], budget=small)
    assert found.text == "class Box:\n    def __init__(\n        self,\n        width: int,\n        depth: int = 3,"


def test_fields_come_before_methods_and_private_members_come_last() -> None:
    text = (
        'class Colour(Enum):\n    """A colour.\n\n    Note: few\n    """\n\n    RED = 1\n    GREEN = 2\n\n'
        "    def __repr__(self): ...\n\n"
        "    def _mix(self, colour): ...\n\n    def name_of(self): ...\n"
    )
    (found, *_) = choose(target("colour = Colour.|"), [python("colour.py", text)], budget=NeighbourBudget(each=100))
    assert found.text.split("\n")[:4] == [
        "class Colour(Enum):",
        "    RED = 1",
        "    GREEN = 2",
        "    def name_of(self): ...",
    ]


def test_lines_that_use_the_same_name_elsewhere_are_shown_each_member_once() -> None:
    text = "def a():\n    b = Style.parse('red')\n    c = Style.parse('blue')\n\n\ndef d():\n    return Style.null()\n"
    (found, *_) = choose(target("import style\n\nbold = Style.|"), [python("uses.py", text)])
    assert found.text.split("\n") == ["b = Style.parse('red')", "return Style.null()"]


def test_a_method_is_shown_only_where_a_member_is_asked_for() -> None:
    text = "class Box:\n    def height(self, unit): ...\n\n    def width(self, unit): ...\n"
    assert any("height" in one.text for one in choose(target("x = box.height(|"), [python("box.py", text * 3)]))
    assert choose(target("x = height + |"), [python("box.py", text + UNRELATED * 3)]) == ()


def test_a_module_behind_the_dot_is_shown_as_what_it_defines() -> None:
    snapshot = python("bank/models.py", MODELS, imported=True, aliases=("m",))
    (found, *_) = choose(target("from bank import models as m\n\nx = m.|"), [snapshot])
    assert "def open_account(owner: str) -> Account:" in found.text
    assert "class Account:" in found.text
    assert "RATE = 0.02" in found.text


def test_code_like_the_code_at_the_cursor_is_shown_with_what_follows_it() -> None:
    other = UNRELATED + (
        "\n\ndef report(session, period):\n    rows = session.query(Invoice).filter_by(period=period)\n"
        "    total = sum(row.amount for row in rows)\n    return render(total, currency='EUR')\n"
    )
    source = "def summary(session, period):\n    rows = session.query(Invoice).filter_by(period=period)\n    |"
    (found, *_) = choose(target(source), [python("paint.py", UNRELATED), python("report.py", other)])
    assert found.name == "# report.py"
    assert "total = sum(row.amount for row in rows)" in found.text
    assert "paint" not in found.text


def test_what_was_edited_last_comes_before_what_was_edited_earlier() -> None:
    snapshots = [python(f"{name}.py", f"x = 1\n\n\ndef {name}():\n    pass\n") for name in ("early", "late")]
    edits = [RecentEdit("late.py", 3, 3, 20.0), RecentEdit("early.py", 3, 3, 10.0)]
    assert [one.name for one in choose(target("value = |"), snapshots, edits)] == ["# late.py", "# early.py"]


@pytest.mark.parametrize(
    "source",
    [
        "value = |",
        "models = paint(|",  # only files that are imported are outlined by their name
    ],
)
def test_nothing_is_shown_where_nothing_is_like_it(source: str) -> None:
    assert choose(target(source), [python("models.py", MODELS)]) == ()


def test_a_class_is_no_news_only_where_its_head_is_shown_too() -> None:
    text = (
        "class Box(Base):\n    def __init__(\n        self,\n        width: int,\n    ) -> None:\n        pass\n\n"
        "    def open(self): ...\n"
    )
    own = text.replace("Box", "Lid").replace("open", "close")
    assert any("class Box" in one.text for one in choose(target(own + "\nbox = Box(|"), [python("box.py", text)]))


def test_what_the_document_shows_already_is_no_neighbour() -> None:
    source = MODELS[MODELS.index("def open_account") :] + "\nopen_account(|"
    copied = python("models.py", MODELS)
    assert not any("def open_account" in one.text for one in choose(target(source), [copied]))
    assert choose(target("open_account(|", name="models.py"), [copied]) == ()


def test_languages_of_a_family_share_definitions_and_others_do_not() -> None:
    text = "export function formatPrice(cents: number): string {\n  return (cents / 100).toFixed(2)\n}\n"
    snapshots = [Snapshot("price.ts", "typescript", text)]
    (found,) = choose(target("const label = formatPrice(|", "javascript", "main.js"), snapshots)
    assert found == wire.Neighbour("// price.ts", text.rstrip())
    assert choose(target("label = formatPrice(|"), snapshots) == ()


@pytest.mark.parametrize(
    ("language", "text", "name"),
    [
        ("python", "async def fetch_all(urls):\n    return urls\n", "fetch_all"),
        ("typescript", "export interface Invoice {\n  total: number\n}\n", "Invoice"),
        ("typescript", "export const total = (rows: Row[]) => rows.length\n", "total"),
        ("javascript", "class Till {\n  addCoin(coin) {\n    this.coins.push(coin)\n  }\n}\n", "addCoin"),
        ("go", "func (s *Store) Lookup(key string) (*Row, error) {\n\treturn nil, nil\n}\n", "Lookup"),
        ("rust", "pub(crate) async fn connect(addr: &str) -> Result<Conn> {\n    todo!()\n}\n", "connect"),
        ("c", "static int parse_header(struct reader *in, size_t most)\n{\n\treturn 0;\n}\n", "parse_header"),
        ("c", "#define CLAMP(x) ((x) < 0 ? 0 : (x))\n", "CLAMP"),
        (
            "java",
            "public class Box {\n    public static Box ofSize(int size) {\n        return null;\n    }\n}\n",
            "ofSize",
        ),
        ("ruby", "def total_of(rows)\n  rows.sum\nend\n", "total_of"),
    ],
)
def test_definitions_of_many_languages_are_found(language: str, text: str, name: str) -> None:
    snapshots = [Snapshot("other", language, text, imported=True)]
    found = choose(target(f"thing.{name}(|", language), snapshots)
    assert name in found[0].text.split("\n")[0]


def test_the_best_comes_first_and_all_within_the_budget() -> None:
    snapshots = [python(f"m{i}.py", MODELS.replace("Account", f"Account{i}")) for i in range(9)]
    source = "".join(f"x{i} = Account{i}()\n" for i in range(9)) + "x0.|"
    budget = NeighbourBudget(most=3, each=150, total=400)
    found = choose(target(source), snapshots, budget=budget)
    assert found[0].name == "# m0.py"
    assert 2 <= len(found) <= 3
    assert all(len(one.text) <= 150 for one in found)
    assert sum(len(one.name) + len(one.text) for one in found) <= 400


def test_only_so_much_text_is_looked_at_for_one_place_and_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = [python(f"m{i}.py", MODELS.replace("Account", f"Account{i}")) for i in range(9)]
    monkeypatch.setattr(neighbours, "MAX_TEXTS", 3 * len(snapshots[0].text))
    assert choose(target("x = Account2()\nx.|"), snapshots)[0].name == "# m2.py"
    assert not any("Account8" in one.text for one in choose(target("x = Account8()\nx.|"), snapshots))


def test_a_choice_is_kept_until_something_clearly_better_turns_up() -> None:
    other = "class Painter:\n    def fill(self): ...\n    def stroke(self): ...\n"
    snapshots = [python("models.py", MODELS), python("paint.py", other)]
    start = "from models import Account\n\naccount = Account(me)\naccount.|"
    before = choose(target(start), snapshots)
    typed = choose(target(start.replace("|", "dep|")), snapshots, kept=before)
    assert typed is before
    assert choose(target(start), snapshots[1:], kept=before) == ()
    changed = [python("models.py", MODELS.replace("owner", "holder")), snapshots[1]]
    assert choose(target(start), changed, kept=before) != before
    elsewhere = "painter = Painter()\n" + "\n" * 30 + "painter.|"
    after = choose(target(elsewhere), snapshots, kept=before)
    assert after[0].name == "# paint.py"
    assert before[0] not in after


def test_the_same_question_has_the_same_answer() -> None:
    snapshots = [python(f"m{i}.py", MODELS) for i in range(5)]
    asked = target("account = Account()\nopen_account(RATE, |")
    assert choose(asked, snapshots) == choose(asked, list(snapshots))


def test_secrets_of_other_files_are_covered() -> None:
    text = 'def connect(host):\n    password = "tr0ub4dor&3"\n    return dial(host, password)\n'
    (found, *_) = choose(target("connect(|"), [python("net.py", text)])
    assert "tr0ub4dor" not in found.text
    assert f'password = "{FILLER * 11}"' in found.text


def test_two_snapshots_of_a_file_are_one_and_the_open_text_counts() -> None:
    opened = python("models.py", "def open_account(owner, currency): ...\n")
    on_disk = python("models.py", MODELS, imported=True, aliases=("models",))
    found = choose(target("import models\nmodels.|"), [opened, on_disk])
    assert [one.text for one in found] == ["def open_account(owner, currency): ..."]


def test_a_very_long_file_is_nobodys_neighbour() -> None:
    assert choose(target("open_account(|"), [python("models.py", MODELS + "#" * MAX_TEXT)]) == ()


def test_a_name_fits_the_wire_however_deep_the_file_lies() -> None:
    (found, *_) = choose(target("open_account(|"), [python("deep/" * 100 + "models.py", MODELS)])
    assert len(found.name) <= 256
    assert found.name.endswith("/models.py")


# The history of edits


def edited(history: History, document: Document, line: int, text: str, now: float, *, until: int | None = None) -> None:
    end = line if until is None else until
    history.edited("a.py", document.edit((line, 0), (end, 0), text), now)


def places(history: History, now: float = 100.0) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in history.recent(now)]


def test_edits_close_to_each_other_are_one_place() -> None:
    history, document = History(), Document("file:///a.py", "python", 1, "x\n" * 100)
    for line in (50, 51, 52):
        edited(history, document, line, "y", 1.0)
    edited(history, document, 10, "y", 2.0)
    assert places(history) == [(10, 10), (50, 52)]


def test_places_move_with_the_lines_above_them() -> None:
    history, document = History(), Document("file:///a.py", "python", 1, "x\n" * 100)
    edited(history, document, 50, "y", 1.0)
    edited(history, document, 10, "one\ntwo\nthree\n", 2.0)
    assert places(history) == [(10, 13), (53, 53)]
    edited(history, document, 10, "", 3.0, until=13)
    assert places(history) == [(10, 10), (50, 50)]


def test_old_edits_and_closed_files_are_forgotten() -> None:
    history, document = History(), Document("file:///a.py", "python", 1, "x\n" * 2000)
    edited(history, document, 5, "y", 1.0)
    assert places(history, now=10.0) == [(5, 5)]
    assert places(history, now=1.0 + History.FORGET_S) == []
    for line in range(0, 2000, 20):
        edited(history, document, line, "y", 2.0)
    assert len(places(history)) == History.MOST
    history.forget("a.py")
    assert places(history) == []
