"""A supernet is a convex mixture, layer by layer; one choice of it is the plain network, bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.model import build
from plait.model.architecture import architecture
from plait.model.language_model import Objective
from plait.supernet.mixture import mixture, noise
from plait.supernet.network import Supernet

HEADER = "d=16 vocab=11 norm=layer final_norm=false"
PAR = ("xl-attn[heads=2,shared_bias]", "mlp[inner=24,act=relu]", None)
TOKENS_BT = torch.tensor([[1, 4, 2, 9, 5], [7, 7, 0, 3, 10]])
TARGETS_BT = torch.tensor([[4, 2, 9, 5, 6], [7, 0, 3, 10, 1]])


def options(text: str | None, header: str = HEADER) -> MixerOptions | None:
    return None if text is None else architecture(f"{header} | {text}").layers[0]


def supernet(choices: tuple[str | None, ...] = PAR, layers: int = 3, header: str = HEADER, seed: int = 0) -> Supernet:
    made = [[options(text, header) for text in choices]] * layers
    return Supernet(architecture(f"{header} | identity").header, made, seed=seed)


@pytest.mark.parametrize("path", list(itertools.product(range(3), repeat=3))[:-1])
def test_one_choice_in_every_layer_is_the_plain_network_bit_for_bit(path: tuple[int, ...]) -> None:
    net = supernet()
    plain = net.extract(path)
    one_hot_LK = torch.nn.functional.one_hot(torch.tensor(path), 3).float()
    net.mix(one_hot_LK)
    mixed = net.model(TOKENS_BT)
    net.walk(path)
    assert torch.equal(mixed, plain(TOKENS_BT))
    assert torch.equal(net.model(TOKENS_BT), plain(TOKENS_BT))
    assert plain.arch == net.architecture(path)
    assert len(plain.arch.layers) == sum(k != 2 for k in path)


SIDE_BY_SIDE = ("(attn[heads=2] | gla[heads=2])[norm]", "sparse-attn[heads=2]", "gla[heads=2,canon=ab]", None)


@pytest.mark.parametrize("path", [(0, 1), (2, 0), (1, 2), (3, 0)])
def test_parallel_layers_sparse_attention_and_canon_are_choices_like_others(path: tuple[int, ...]) -> None:
    net = supernet(SIDE_BY_SIDE, layers=2)
    plain = net.extract(path)
    net.walk(path)
    assert torch.equal(net.model(TOKENS_BT), plain(TOKENS_BT))


SHARING = (
    "attn[heads=2,share=a]",
    "zamba2[head_dim=8,state=4,heads=2,inner=24,lora=2,share=b]",
    "gla[heads=2]",
    "attn[heads=4,share=a]",
)


@pytest.mark.parametrize("path", [(0, 0, 0), (2, 1, 1), (1, 0, 0), (3, 3, 2)])
def test_choices_that_share_weights_or_read_the_embeddings_are_the_plain_network_s(path: tuple[int, ...]) -> None:
    net = supernet(SHARING, layers=3)
    plain = net.extract(path)
    net.walk(path)
    with torch.no_grad():
        for parameter in (*net.parameters(), *plain.parameters()):  # the weights of equal size are drawn alike
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    assert torch.equal(net.model(TOKENS_BT), plain(TOKENS_BT))
    assert torch.equal(net.model.loss(TOKENS_BT, TARGETS_BT), plain.loss(TOKENS_BT, TARGETS_BT))
    own = {id(p) for p in net.model.backbone.blocks[0].parameters()}
    assert own & {id(p) for p in net.model.backbone.blocks[2].parameters()}


def test_a_choice_that_reads_of_an_earlier_layer_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"cross-attn\[heads=2\] reads from an earlier layer, and in a supernet it is not known"
    ):
        Supernet(
            architecture(f"{HEADER} | identity").header,
            [[layer] for layer in architecture(f"{HEADER} | attn[heads=2] cross-attn[heads=2]").layers],
        )


HYBRID = ("attn[heads=2]", "gla[heads=2]", "mamba[state=4]", "swiglu[inner=24]", "moe[experts=2,active=1]", None)


def test_any_mixers_may_be_mixed_and_their_own_losses_count_by_their_share() -> None:
    net = supernet(HYBRID, layers=2, header="d=16 vocab=11")
    path = (0, 4)
    net.walk(path)
    torch.testing.assert_close(net.model.loss(TOKENS_BT, TARGETS_BT), net.extract(path).loss(TOKENS_BT, TARGETS_BT))
    weights_LK = mixture(net.logits_LK, noise(0, 0, (2, 6)), 1.0, "soft").detach()
    net.mix(weights_LK)
    _, own = net.model.backbone.forward_with_loss(TOKENS_BT)
    assert own > 0
    net.mix(weights_LK * torch.tensor([1.0, 1, 1, 1, 0, 1]))
    assert net.model.backbone.forward_with_loss(TOKENS_BT)[1] == 0


def test_gradients_of_the_mixture_match_finite_differences() -> None:
    net = supernet(HYBRID[:3] + HYBRID[5:], layers=2, header="d=16 vocab=11").double()
    drawn_LK = noise(1, 1, (2, 4)).double()

    def loss(scores_LK: torch.Tensor) -> torch.Tensor:
        net.mix(mixture(scores_LK, drawn_LK, 0.8, "soft"))
        return net.model.loss(TOKENS_BT, TARGETS_BT)

    scores_LK = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (scores_LK,), atol=1e-7)


def test_a_path_has_the_gradient_of_its_own_choices() -> None:
    net = supernet()
    weights_LK = mixture(net.logits_LK, noise(0, 0, (3, 3)), 1.0, "path")
    path = weights_LK.argmax(dim=1).tolist()
    net.walk(path, weights_LK)
    net.model.loss(TOKENS_BT, TARGETS_BT).backward()
    assert net.scores_LK.grad is not None
    ran = {f"{layer}.{k}" for layer, k in enumerate(path)}
    for name, parameter in net.model.named_parameters():
        if "blocks" in name and "bias_HP" not in name:
            layer, k = name.split(".")[2], name.split(".")[4]
            assert (parameter.grad is not None) == (f"{layer}.{k}" in ran), name


def test_segment_memory_goes_on_in_choices_that_did_not_run() -> None:
    net = supernet()
    path, other = (0, 1, 0), (1, 0, 0)
    plain = net.extract(path)
    memory, expected = net.model.init_memory(2, 8), plain.init_memory(2, 8)
    net.walk(other)
    _, memory = net.model.loss_with_memory(TOKENS_BT, TARGETS_BT, memory)
    net.walk(path)
    first = net.mixtures[0]
    remembered = memory.layers[0]["0.hidden"]
    inputs_BTD = net.model.backbone.embed(TOKENS_BT, None, None)
    assert torch.equal(remembered, first._block("0").norm(inputs_BTD))
    loss, _ = net.model.loss_with_memory(TARGETS_BT, TOKENS_BT, memory)
    without, _ = net.model.loss_with_memory(TARGETS_BT, TOKENS_BT, net.model.init_memory(2, 8))
    assert loss != without
    # One path all along is the plain network's own segment recurrence.
    memory = net.model.init_memory(2, 8)
    for tokens, targets in ((TOKENS_BT, TARGETS_BT), (TARGETS_BT, TOKENS_BT)):
        mine, memory = net.model.loss_with_memory(tokens, targets, memory)
        theirs, expected = plain.loss_with_memory(tokens, targets, expected)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("training", [False, True])
def test_compared_networks_lose_what_they_lose_alone_and_run_no_layer_twice(memory: int, training: bool) -> None:
    net = supernet(layers=4)
    objective = Objective(net.model).train(training)
    path, others = (0, 1, 2, 1), [(1, 1, 2, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 0)]

    def loss() -> torch.Tensor:
        held = net.model.init_memory(2, memory) if memory else None
        return objective(TOKENS_BT, TARGETS_BT, held)[0]

    ran: list[int] = []
    for at, layer in enumerate(net.mixtures):
        for block in layer.blocks.values():
            block.mixer.register_forward_hook(lambda *_, at=at: ran.append(at))
            extend = block.mixer.extend
            block.mixer.extend = lambda *args, at=at, extend=extend: (ran.append(at), extend(*args))[1]

    with torch.no_grad():
        with net.comparing(path) as walk:
            found = []
            for tried in (path, *others):
                walk(tried)
                ran.clear()
                found.append((float(loss()), sorted(set(ran))))
        alone = []
        for tried in (path, *others):
            net.walk(tried)
            alone.append(float(loss()))
    assert [value for value, _ in found] == alone
    assert len(set(alone)) == 5
    first = (0, 0, 2, 2, 3)
    for (_, layers), tried, start in zip(found, (path, *others), first, strict=True):
        assert layers == [at for at in range(start, 4) if tried[at] != 2]
    assert all(layer.kept is None for layer in net.mixtures)


def test_weights_start_as_those_of_any_model_and_shared_biases_are_one() -> None:
    net = supernet()
    biases = {
        id(block.mixer.content_bias_HP)
        for layer in net.mixtures
        for block in layer.each_block
        if "attn" in block.mixer.options.name
    }
    assert len(biases) == 1
    assert 0.01 < float(net.model.backbone.embedding.first_table.std().detach()) < 0.03
    twin, other = supernet(seed=0), supernet(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert not torch.equal(net.model.backbone.embedding.first_table, other.model.backbone.embedding.first_table)


def test_shared_biases_of_different_shapes_are_one_for_each() -> None:
    net = supernet(("xl-attn[heads=2,shared_bias]", "xl-attn[heads=4,shared_bias]", None))
    biases = {id(block.mixer.content_bias_HP) for layer in net.mixtures for block in layer.each_block}
    assert len(biases) == 2
    net.mix(net.probabilities_LK)
    assert net.model(TOKENS_BT).isfinite().all()


def test_layers_may_have_different_choices() -> None:
    layers = [[options("mlp"), None], [options("attn[heads=2]"), options("mlp"), None]]
    net = Supernet(architecture(f"{HEADER} | identity").header, layers)
    assert net.probabilities_LK[0].tolist() == [0.5, 0.5, 0.0]
    assert net.probabilities_LK[1].tolist() == pytest.approx([1 / 3] * 3)
    with torch.no_grad():
        net.scores_LK[0, 2] = 9.0
    assert net.best[0] < 2


def test_what_is_no_supernet_is_refused() -> None:
    header = architecture(f"{HEADER} | identity").header
    with pytest.raises(UserError, match="at least one layer"):
        Supernet(header, [])
    with pytest.raises(UserError, match="every layer at least one choice"):
        Supernet(header, [[None], []])
    with pytest.raises(UserError, match="kind=autoencoder"):
        Supernet(architecture("d=16 vocab=11 kind=autoencoder | gla").header, [[None]])


def test_the_network_costs_as_much_as_its_choices() -> None:
    """Linear in the number of choices: their parameters add up."""
    one, three = supernet(("mlp",)), supernet(("mlp", "mlp[inner=8]", None))
    count = [sum(p.numel() for p in net.model.parameters()) for net in (one, three)]
    outside = sum(p.numel() for p in build(f"{HEADER} | identity").parameters())
    mlp, narrow = (
        sum(p.numel() for p in build(f"{HEADER} | {text}").parameters()) - outside for text in ("mlp", "mlp[inner=8]")
    )
    assert count[0] - outside == 3 * mlp
    assert count[1] - outside == 3 * (mlp + narrow)
