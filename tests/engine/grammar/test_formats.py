"""Formats of JSON Schema: what is accepted is valid, by examples and by Python's own readers."""

import datetime
import ipaddress
import urllib.parse
import uuid
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.engine.grammar.formats import FORMATS

from ...support.walks import walks

LABEL = "a" * 63
GOOD = {
    "date": ["2026-11-21", "2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"],
    "time": ["12:00:00Z", "23:59:59.5+01:30", "00:00:00z", "08:30:06.283185-08:00"],
    "date-time": ["2026-11-21T12:00:00Z", "1963-06-19t08:30:06.283185z", "1990-12-31T15:59:50.123-08:00"],
    "duration": ["P4DT12H30M5S", "P1W", "PT0S", "P1Y", "PT36H", "P1Y2M3DT4H5M6S", "P2M"],
    "email": ["a@b.c", "joe.bloggs@example.com", "te~st+x@example.com", "x" * 64 + "@host"],
    "hostname": [
        "localhost",
        "www.example.com",
        "a",
        "1host",
        f"{LABEL}.{LABEL}.{LABEL}",
        "a-b",
        "ab-c",
        "a--b",
        "x.y.z.w",
    ],
    "ipv4": ["0.0.0.0", "192.168.1.255"],
    "ipv6": ["::", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:192.0.2.1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
    "uri": [
        "http://foo.bar/?baz=qux#quux",
        "ftp://ftp.is.co.za/rfc/rfc1808.txt",
        "urn:oasis:names:tc",
        "mailto:John.Doe@example.com",
        "http://user:pw@[2001:db8::7]:80/c?d#e",
        "file:///etc/hosts",
        "a:",
        "http://a/%20",
    ],
    "uri-reference": ["", "/abc", "#fragment", "../a?b", "//host/x", "http://a", "a/b:c", "?q"],
    "iri": ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "http://例え.jp/"],
    "iri-reference": ["/âππ", "#ƒräg", ""],
    "uri-template": ["http://example.com/{term:1}/{term}", "{?x,y*}", "dictionary/{+path}", "", "{a.b}", "a'b"],
    "json-pointer": ["", "/foo/0", "/a~1b/m~0n", "/é", "/"],
    "relative-json-pointer": ["1", "0/foo/bar", "2#", "120/"],
}
BAD = {
    "date": ["2026-02-29", "1900-02-29", "2026-13-01", "2026-04-31", "2026-1-1", "0000-01-01", "٢026-01-01"],
    "time": ["12:00:00", "24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00Z", "12:00:00+24:00", "12:00:00+0100"],
    "date-time": ["2026-11-21 12:00:00Z", "2026-11-21", "2026-11-21T12:00:00", "2026-02-30T12:00:00Z"],
    "duration": ["P", "PT", "P1", "P1YT", "P1D2H", "P1W2D", "4DT12H", "P1Y3D", "PT1D", "P1H"],
    "email": ["", "a", "@b", "a@", ".a@b.c", "a.@b.c", "a..b@c", "a b@c", "x" * 65 + "@host", "a@b@c", "a@-b"],
    "hostname": ["", "-a", "a-", "a..b", ".a", "a.", LABEL + "a", "a_b", "xn--X", "é.fr", ".".join([LABEL] * 4)],
    "ipv4": ["256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", "1.2.3.4/24"],
    "ipv6": [":", "1::2::3", "12345::", "1:2:3:4:5:6:7", "::1%eth0", ":::", "1:2:3:4:5:6:7:8::"],
    "uuid": ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638g"],
    "uri": ["", "//foo", "/abc", "foo", "http://a b", ":// should", "bar,baz:x", "http://a/%2", "1a:b", "http://é"],
    "uri-reference": ["\\\\WINDOWS", "#a#b", "a b", "1a:b", "é", "%zz"],
    "iri": ["/abc", "http://2001:0db8:85a3::", "âππ", "http://a b"],
    "iri-reference": ["\\\\x", "a\ue000b"],
    "uri-template": ["{", "{}", "{a", "a}", "a b", "{a:0}", "{a,}", "{|a}"],
    "json-pointer": ["a", "#", "/~", "/~2", "#/a"],
    "relative-json-pointer": ["", "/a", "01", "-1", "0##", "1a"],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_examples_of_each_format(name: str) -> None:
    assert [text for text in GOOD[name] if not FORMATS[name].accepts(text)] == []
    assert [text for text in BAD[name] if FORMATS[name].accepts(text)] == []


def test_an_unknown_format_is_none() -> None:
    assert "colour" not in FORMATS
    assert len(list(FORMATS)) == len(FORMATS) == len(GOOD)


READERS: dict[str, Callable[[str], object]] = {
    "date": datetime.date.fromisoformat,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "uri": urllib.parse.urlsplit,
}


@pytest.mark.parametrize("name", READERS)
@given(random=st.randoms())
@settings(max_examples=40, deadline=None)
def test_what_is_accepted_can_be_read(name: str, random: Random) -> None:
    for text in walks(FORMATS[name], random, 5):
        READERS[name](text)


@given(st.dates())
@settings(deadline=None)
def test_every_date_of_the_calendar_is_accepted(date: datetime.date) -> None:
    assert FORMATS["date"].accepts(date.isoformat())


@given(st.ip_addresses())
@settings(deadline=None)
def test_every_address_is_accepted_as_python_writes_it(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    forms = [str(address), address.exploded]
    assert all(map(FORMATS[f"ipv{address.version}"].accepts, forms))


@given(random=st.randoms())
@settings(max_examples=40, deadline=None)
def test_no_host_name_is_longer_than_allowed(random: Random) -> None:
    for text in walks(FORMATS["hostname"], random, 3, most=400):
        assert len(text) <= 253
        assert all(0 < len(label) <= 63 for label in text.split("."))
