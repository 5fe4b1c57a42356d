"""The LM head in one pass: what it says of each row is what the whole logits say."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from caesura.kernels import head, jit
from caesura.kernels.head import Head, Rows, Seen

from ..support.checkpoints.few import few

CAP = 30.0
SHAPES = [(1, 16, 7), (3, 40, 300), (17, 33, 1000), (5, 123, 517)]  # rows, D, V
needs_triton = pytest.mark.skipif(jit.triton is None, reason="Triton is not for this platform")
WAYS = [pytest.param(head.reference, id="reference"), pytest.param(head.launch, id="kernel", marks=needs_triton)]
DRAWS = [
    pytest.param(head.reference_draw, id="reference"),
    pytest.param(head.launch_draw, id="kernel", marks=needs_triton),
]
Draw = Callable[[Head, Rows, Seen, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles also of a small vocabulary."""
    monkeypatch.setattr(head, "TILE", 64)
    monkeypatch.setattr(head, "CACHE", 1)
    monkeypatch.setattr(head, "KEPT", 16)


def asked(rows: int, size: int, vocabulary: int, sharp: float = 3.0) -> tuple[Head, Rows]:
    """Two sets of bans: none, and half of the vocabulary."""
    generator = torch.Generator().manual_seed(rows + vocabulary)
    embed = torch.randn(vocabulary, size, generator=generator)
    hidden = torch.randn(rows, size, generator=generator) * sharp
    bans = torch.zeros(2, vocabulary)
    bans[1, ::2] = head.NEVER
    warm = torch.rand(rows, generator=generator) * 0.4 + 0.4
    return Head(embed, embed, CAP), Rows(hidden, warm, bans, torch.arange(rows) % 2, every(rows))


@pytest.mark.parametrize("way", WAYS)
def test_of_equal_logits_the_token_is_the_lowest(way: Callable[[Head, Rows], Seen]) -> None:
    """In one tile and in several."""
    of, rows = asked(5, 123, 517)
    whole = head.logits(of, rows.hidden)
    best = int((whole[0] - 1e9 * (torch.arange(517) < 70)).argmax())
    for lower in (best - 1, best - 66):
        for tokens in (of.matrix, of.embed):
            tokens[lower] = tokens[best]
    above = torch.arange(517) < best - 66
    bans = torch.where(above, head.NEVER, 0.0)[None].repeat(2, 1)
    assert way(of, replace(rows, bans=bans)).token[0] == best - 66


def every(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def whole(of: Head, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, those with bans, and p."""
    raw = head.logits(of, rows.hidden)
    z = raw + rows.bans[rows.which]
    return raw, z, (z / rows.temperature[:, None]).softmax(-1)


def check(of: Head, rows: Rows, seen: Seen, close: float) -> None:
    raw, z, p = whole(of, rows)
    best = p.topk(2)
    assert torch.equal(seen.token, best.indices[:, 0])
    logp = z.log_softmax(-1).gather(1, seen.token[:, None])[:, 0]
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1)
    expected = (best.values[:, 0], best.values[:, 0] - best.values[:, 1], entropy, logp, raw.logsumexp(-1))
    found = (seen.prob, seen.margin, seen.entropy, seen.best - seen.told, seen.raw)
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, atol=close, rtol=close)
    tiles = torch.stack([part.sum(-1) for part in p.split(seen.width, -1)], 1)
    torch.testing.assert_close(seen.shares, tiles, atol=close, rtol=close)


@pytest.mark.parametrize("observe", WAYS)
@few("shape", SHAPES, 3)
def test_it_says_what_whole_logits_say(observe: object, shape: tuple[int, int, int]) -> None:
    of, rows = asked(*shape)
    assert callable(observe)
    check(of, rows, observe(of, rows), 2e-5)


@pytest.mark.parametrize("observe", WAYS)
@pytest.mark.parametrize("sharp", [0.02, 0.5, 8.0])
def test_the_mean_embedding_is_exact_however_flat_the_row(observe: object, sharp: float) -> None:
    of, rows = asked(5, 40, 1000, sharp)
    assert callable(observe)
    mean = whole(of, rows)[2] @ of.embed
    close = 5e-3 if observe is head.launch and sharp > 1 else 2e-5  # what is gathered leaves out a thousandth
    torch.testing.assert_close(observe(of, rows).soft, mean, atol=close, rtol=close)


@needs_triton
@pytest.mark.parametrize("rows", [5, 40, 200])
def test_only_flat_rows_are_replaced_by_their_mean(rows: int) -> None:
    """Every third row is flat; what lies in the others counts as nothing, whatever it is."""
    of, _ = asked(5, 40, 1000)
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(rows, 1000, generator=generator).softmax(-1)
    level = torch.randn(rows, 16, generator=generator)
    kept = p.log() - level.repeat_interleave(64, 1)[:, :1000]
    flat, soft = torch.arange(rows) % 3 == 0, torch.randn(rows, 40, generator=generator)
    kept[~flat], before = torch.nan, soft.clone()
    head.replace_flat(of, kept, level, flat, soft, head.TILE)
    torch.testing.assert_close(soft[flat], (p @ of.embed)[flat], atol=2e-5, rtol=2e-5)
    assert torch.equal(soft[~flat], before[~flat])


@needs_triton
def test_a_block_without_a_flat_row_does_not_read_the_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a canvas without one."""
    of, products = asked(5, 40, 1000)[0], list[int]()

    def dot(p: object, e: object, total: object, **_: object) -> object:
        products.append(1)
        return total

    monkeypatch.setattr(head.tl, "dot", dot)

    def multiplied(*rows: int) -> int:
        flat = torch.zeros(200, dtype=torch.bool).index_fill_(0, torch.tensor(rows, dtype=torch.int64), True)
        products.clear()
        head.replace_flat(of, torch.zeros(200, 1000), torch.zeros(200, 16), flat, torch.zeros(200, 40), head.TILE)
        return len(products)

    assert multiplied() == 0
    assert 0 < 2 * multiplied(3) == 2 * multiplied(3, 127) == multiplied(3, 128)


@needs_triton
def test_a_flat_row_that_is_not_open_reads_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of, rows = asked(5, 40, 1000, 0.02)
    asked_of, inner = list[Tensor](), head.replace_flat

    def replace_flat(of: Head, kept: Tensor, level: Tensor, flat: Tensor, soft: Tensor, tile: int) -> None:
        asked_of.append(flat)
        inner(of, kept, level, flat, soft, tile)

    monkeypatch.setattr(head, "replace_flat", replace_flat)
    open = torch.tensor([True, False, False, True, False])
    seen = head.launch(of, replace(rows, open=open))
    assert torch.equal(asked_of[0], open)
    torch.testing.assert_close(seen.soft[open], (whole(of, rows)[2] @ of.embed)[open], atol=2e-5, rtol=2e-5)
    assert seen.soft.isfinite().all()


@pytest.mark.parametrize("observe", WAYS)
def test_half_precision(observe: object) -> None:
    of, rows = asked(17, 64, 400, 0.5)
    assert callable(observe)
    small = Head(of.embed.half(), of.embed.half(), CAP)
    half = observe(small, replace(rows, hidden=rows.hidden.half()))
    embed, hidden = of.embed.half().float(), rows.hidden.half().float()
    p = whole(Head(embed, embed, CAP), replace(rows, hidden=hidden))[2]
    torch.testing.assert_close(half.prob, p.amax(-1), atol=3e-3, rtol=1e-2)
    torch.testing.assert_close(half.soft.float(), p @ embed, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("observe", WAYS)
def test_tokens_are_drawn_as_often_as_they_are_probable(observe: object) -> None:
    of, rows = asked(2, 16, 300, 0.4)
    assert callable(observe)
    seen, (_, _, p), count = observe(of, rows), whole(of, rows), 4000
    at = (torch.arange(count) + 0.5) / count
    for row in range(2):
        same = torch.full((count,), row)
        drawn = head.draw(of, rows.some(same), seen.some(same), at, every(count))
        often = torch.bincount(drawn, minlength=300) / count
        assert (often - p[row]).abs().max() <= 2 / count  # evenly spaced numbers hit each within one step
        assert (often[rows.bans[rows.which[row]] < 0] == 0).all()


@needs_triton
@few("shape", SHAPES, 3)
def test_the_kernel_draws_the_token_that_pytorch_draws(shape: tuple[int, int, int]) -> None:
    of, rows = asked(*shape, sharp=0.5)
    same = torch.arange(shape[0]).repeat_interleave(30)
    rows, seen = rows.some(same), head.reference(of, rows).some(same)
    at = torch.rand(len(same), generator=torch.Generator().manual_seed(0))
    given = of, rows, seen, at, every(len(same))
    assert torch.equal(head.launch_draw(*given), head.reference_draw(*given))


@needs_triton
def test_the_kernel_draws_in_half_precision() -> None:
    of, rows = asked(17, 64, 400, 0.5)
    half = Head(of.embed.half(), of.embed.half(), CAP), replace(rows, hidden=rows.hidden.half())
    exact = Head(half[0].embed.float(), half[0].embed.float(), CAP), replace(rows, hidden=half[1].hidden.float())
    seen, at = head.reference(*exact), torch.rand(17, generator=torch.Generator().manual_seed(0))
    drawn = head.launch_draw(*half, seen, at, every(17))
    assert torch.equal(drawn, head.reference_draw(*exact, seen, at, every(17)))


@pytest.mark.parametrize("draw", DRAWS)
def test_what_is_not_wanted_changes_nothing_of_what_is(draw: Draw) -> None:
    of, rows = asked(17, 33, 1000)
    seen, at = head.reference(of, rows), torch.rand(17, generator=torch.Generator().manual_seed(0))
    whole, wanted = draw(of, rows, seen, at, every(17)), torch.arange(17) % 3 == 0
    drawn = draw(of, rows, seen, at, wanted)
    assert torch.equal(drawn[wanted], whole[wanted])
    assert torch.equal(drawn[~wanted], seen.token[~wanted])
    assert torch.equal(draw(of, rows, seen, at, ~every(17)), seen.token)


@needs_triton
def test_a_row_that_is_not_wanted_reads_nothing() -> None:
    of, rows = asked(3, 16, 300)
    seen, none = head.reference(of, rows), torch.zeros(3, 16).fill_(torch.nan)
    wanted = torch.tensor([False, True, False])
    damaged = replace(rows, hidden=torch.where(wanted[:, None], rows.hidden, none))
    at = torch.full((3,), 0.5)
    assert torch.equal(head.launch_draw(of, damaged, seen, at, wanted), head.launch_draw(of, rows, seen, at, wanted))


@pytest.mark.parametrize("draw", DRAWS)
def test_the_ends_of_the_unit_interval_draw_tokens(draw: Draw) -> None:
    of, rows = asked(2, 16, 300, 8.0)
    seen = head.reference(of, rows)
    for at in (0.0, 1 - 2**-24):
        drawn = draw(of, rows, seen, torch.full((2,), at), every(2))
        assert (whole(of, rows)[2].gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize("draw", DRAWS)
def test_nothing_forbidden_is_drawn_where_whole_tiles_are(draw: Draw) -> None:
    of, rows = asked(2, 16, 300)
    rows.bans[:, 200:] = head.NEVER
    for shares in (1.0, 0.99999):
        seen = head.reference(of, rows)
        seen = seen._replace(shares=seen.shares * shares)
        drawn = draw(of, rows, seen, torch.full((2,), 1 - 2**-24), every(2))
        assert (rows.bans[rows.which].gather(1, drawn[:, None]) == 0).all()


def test_a_token_is_scored_as_among_all() -> None:
    of, rows = asked(5, 40, 1000)
    ids = torch.tensor([0, 999, 3, 500, 17])
    expected = whole(of, rows)[0].gather(1, ids[:, None])[:, 0]
    for path in (head.score, head.launch_score):
        torch.testing.assert_close(path(of, rows.hidden, ids), expected)


def test_a_row_is_what_it_is_alone() -> None:
    of, rows = asked(17, 33, 1000)
    together = head.reference(of, rows)
    alone = head.reference(of, rows.some(torch.tensor([4])))
    assert together.token[4] == alone.token[0]
    torch.testing.assert_close(together.soft[4], alone.soft[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("sharp", [0.01, 0.3])
def test_the_kernel_at_the_real_shape(monkeypatch: pytest.MonkeyPatch, sharp: float) -> None:
    monkeypatch.undo()
    generator = torch.Generator("cuda").manual_seed(0)
    embed = torch.randn(262_144, 2816, generator=generator, device="cuda", dtype=torch.bfloat16)
    hidden = torch.randn(32, 2816, generator=generator, device="cuda", dtype=torch.bfloat16) * sharp
    of = Head(embed, embed, CAP)
    bans = torch.zeros(1, 262_144, device="cuda")
    warm, which = torch.full((32,), 0.6, device="cuda"), torch.zeros(32, dtype=torch.int64, device="cuda")
    rows = Rows(hidden, warm, bans, which, every(32).cuda())
    kernel, reference = head.launch(of, rows), head.reference(of, rows)
    torch.testing.assert_close(kernel.entropy, reference.entropy, atol=5e-2, rtol=2e-2)
    torch.testing.assert_close(kernel.soft.float(), reference.soft.float(), atol=3e-2, rtol=3e-2)
