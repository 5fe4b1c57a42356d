"""What a person gets who has the placeholders of a snippet filled. In other files `$1` is code, and stays."""

import pytest

from caesura import wire
from caesura.server.fills.fills import gaps_in
from caesura.server.fills.task import NoFill
from caesura.server.text.document import Document

from .test_fill import apply, fills, result

CODE = {  # selections with dollars, as people have them
    "a.go": 'row := db.QueryRow("SELECT * FROM t WHERE id = $1 AND k = $2", id, k)\n',
    "a.sql": "SELECT * FROM t WHERE id = $1 AND k = $2;\n",
    "a.js": "const pad = s.replace(/(\\d+)-(\\d+)/, '$2-$1');\n",
    "a.py": 'cur.execute("select * from t where a = $1", (a,))\n',
    "a.tf": 'name = "${1}"\n',
    "a.sh": 'local name="${1:-world}"\n',
    "a.php": 'echo "Costs $10 and {$a[1]}";\n',
    "a.swift": "sorted { $1 < $0 }\n",
    "a.awk": "{ print $1, ${2} }\n",
    "a.md": "It costs $5 or $10.\n",
    "Dockerfile": "RUN echo ${1:-x} $2\n",
    "snippets.py": 'body = "for ${1:item} in $2"\n',
}


def page(name: str, text: str) -> Document:
    return Document(f"file:///project/{name}", "plaintext", 1, text)


def whole(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


@pytest.mark.parametrize(("name", "text"), CODE.items())
async def test_a_dollar_is_code(name: str, text: str) -> None:
    fill, engine = fills([["A", "B"]])
    assert gaps_in(page(name, text), whole(text)) == ([], "")
    with pytest.raises(NoFill, match="no marker <FILL>"):
        fill.holes(page(name, text), whole(text))
    assert engine.jobs == []


@pytest.mark.parametrize(
    ("text", "fill", "filled"),
    [
        ("for ${1:item} in $2:\n", ["a", "b"], "for a in b:\n"),
        ("for ${1:item} in ${2:items}:\n    print(${1:item})\n", ["row", "rows"], "for row in rows:\n    print(row)\n"),
        (
            "const ${1:name} = require('${2:module}');\n${1:name}.run();\nmodule.exports = ${1:name};\n",
            ["fs", "node:fs"],
            "const fs = require('node:fs');\nfs.run();\nmodule.exports = fs;\n",
        ),
        ("$1 = ${1:name}.get($1)\n", ["key"], "key = key.get(key)\n"),  # the one with a name is filled
        ("${1|let,const|} x = $2; ${1}\n", ["const", "1"], "const x = 1; const\n"),
        ("$1 costs \\$2\n", ["it"], "it costs \\$2\n"),  # escaped
        ("$1 <FILL>\n", ["it"], "$1 it\n"),  # with a marker, nothing else is a hole
    ],
)
async def test_one_number_gets_one_text(text: str, fill: list[str], filled: str) -> None:
    snippet, (filling, engine) = page("a.snippets", text), fills([fill])
    found = await result(filling.holes(snippet, whole(text)))
    assert (found.holes, apply(snippet, found)) == (len(fill), filled)
    assert sum(isinstance(part, wire.Hole) for part in engine.jobs[0].segments) == len(fill)


async def test_a_place_of_the_same_number_shows_the_model_its_name() -> None:
    text = "for ${1:item} in $2:\n    print($1)\n"
    filling, engine = fills([["row", "rows"]])
    await result(filling.holes(page("a.snippets", text), whole(text)))
    assert engine.jobs[0].suffix == ":\n    print(item)\n"


async def test_a_choice_takes_one_of_its_choices() -> None:
    text = "${1|let,const|} x = $2\n"
    snippet, (filling, engine) = page("a.snippets", text), fills([["var", "1"], ["const", "2"]])
    assert apply(snippet, await result(filling.holes(snippet, whole(text)))) == "const x = 2\n"
    first = engine.jobs[0].segments[0]
    assert isinstance(first, wire.Hole)
    assert first.grammar == wire.Pattern("(?:let|const)")


async def test_what_is_not_understood_stays_and_is_said() -> None:
    text = "${1:name} = ${1/(.*)/${1:/upcase}/}(${2:a ${3:b}}, $3)\n"
    snippet, (filling, _) = page("a.code-snippets", text), fills([["x", "y"]])
    found = await result(filling.holes(snippet, whole(text)))
    assert apply(snippet, found) == "x = ${1/(.*)/${1:/upcase}/}(${2:a ${3:b}}, y)\n"
    assert found.note == (
        "Left as it is: ${1/(.*)/${1:/upcase}/}, ${2:a ${3:b}}; transforms and nested placeholders are not filled."
    )
    only = "${1/a/b/}\n"
    with pytest.raises(NoFill, match="transforms and nested placeholders are not filled"):
        filling.holes(page("a.snippets", only), whole(only))


async def test_each_snippet_of_a_file_has_its_own_numbers() -> None:
    text = "snippet a\n$1 $1\nendsnippet\nsnippet b\n$1\nendsnippet\n"
    snippet, (filling, _) = page("a.snippets", text), fills([["x", "y"]])
    assert apply(snippet, await result(filling.holes(snippet, whole(text)))) == text.replace("$1 $1", "x x").replace(
        "$1", "y"
    )


async def test_a_client_may_say_that_a_snippet_is_being_expanded() -> None:
    text = "for ${1:item} in $2:\n"
    snippet, (filling, _) = page("a.py", text), fills([["a", "b"]])
    assert apply(snippet, await result(filling.holes(snippet, whole(text), snippet=True))) == "for a in b:\n"


async def test_a_part_that_is_kept_stays_in_all_places_of_its_number() -> None:
    text = "${1:x} = ${1:x}\n"
    snippet, (filling, _) = page("a.snippets", text), fills([["old.name"]], [["new"]])
    assert apply(snippet, await result(filling.holes(snippet, whole(text)))) == "old.name = old.name\n"
    again = await result(filling.keep(snippet, [(3, 8)]))
    assert apply(snippet, again) == "new.name = new.name\n"
