"""Training in simulated time is real: gradients are right, and modes do to a model what they say."""

import numpy as np
import pytest

from starprof.demo.digits import MODELS, digits, model
from starprof.simulation import Change, Mode, RealTraining, Steady, Until, Worker, simulate
from starprof.simulation.training.noise_scale import gain
from starprof.simulation.training.parameters import Layout
from starprof.simulation.training.real import noise_scale
from starprof.sync.policies import Gradient, Update

DATA = digits()
STAFF = [Worker(index, Steady(1.0, cv=0.2), batch=16) for index in range(4)]


def train(mode, updates=40, **given):
    training = RealTraining(model("mlp"), DATA, 0.2, **given)
    return simulate(mode, STAFF, training, until=Until(progress=updates))


def torch_loss(torch, name, p, x, labels, weights):
    """The same models, written with torch's own operations."""
    functional = torch.nn.functional
    if name in ("logistic", "mlp"):
        x = x @ p["w0"] + p["b0"]
        logits = x if "w1" not in p else torch.relu(x) @ p["w1"] + p["b1"]
    elif name == "cnn":
        kernel = p["kernel"].T.reshape(-1, 1, 3, 3)
        maps = torch.relu(functional.conv2d(x.reshape(-1, 1, 8, 8), kernel, p["bias"]))
        pooled = functional.avg_pool2d(maps, 2).permute(0, 2, 3, 1).reshape(len(x), -1)
        logits = pooled @ p["w"] + p["b"]
    else:
        x = x.reshape(len(x), 8, 8) @ p["embed"] + p["place"]
        normed = functional.layer_norm(x, (16,), p["norm1_gain"], p["norm1"])
        q, k, v = (t.reshape(len(x), 8, 2, 8).transpose(1, 2) for t in (normed @ p["qkv"]).split(16, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 8, 16)
        x = x + mixed @ p["out"]
        normed = functional.layer_norm(x, (16,), p["norm2_gain"], p["norm2"])
        x = x + torch.relu(normed @ p["up"] + p["up_bias"]) @ p["down"]
        pooled = functional.layer_norm(x, (16,), p["norm3_gain"], p["norm3"]).mean(1)
        logits = pooled @ p["w"] + p["b"]
    return (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(7)
    small = model(name)
    flat = small.layout.initial(random) + 0.05 * random.standard_normal(small.layout.size).astype(np.float32)
    x, y = DATA.samples[:24], DATA.labels[:24]
    weights = random.uniform(0.1, 1.0, 24).astype(np.float32)
    loss, grad = small.gradient(flat, x, y, weights)
    leaf = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
    parts, place = {}, 0
    for key, part in small.layout.parts(flat).items():
        parts[key] = leaf[place : place + part.size].reshape(part.shape)
        place += part.size
    expected = torch_loss(torch, name, parts, torch.tensor(x).double(), torch.tensor(y), torch.tensor(weights).double())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert np.abs(grad - leaf.grad.numpy()).max() < 2e-5 * max(1.0, np.abs(grad).max())


def test_a_layout_covers_everything_once():
    layout = Layout({"a": (2, 3), "b": (4,)})
    flat = np.arange(10, dtype=np.float32)
    parts = layout.parts(flat)
    assert np.concatenate([part.ravel() for part in parts.values()]).tolist() == flat.tolist()
    parts["b"][0] = 99
    assert flat[6] == 99


@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns(name):
    training = RealTraining(model(name), DATA, 0.05 if name == "transformer" else 0.2, momentum=0.9)
    history = simulate(Mode("ssgd"), STAFF, training, until=Until(updates=200))
    assert history.evaluations[0].accuracy < 0.3
    assert history.accuracy > 0.85


@pytest.mark.parametrize(
    "mode",
    [
        Mode("static-x", {"x": 4}),
        Mode("m-sync", {"m": 4}),
        Mode("ring-x", {"x": 4}),
        Mode("dynamic-x", {"threshold": 100.0}),
        Mode("lgc", {"k": 4}),
        Mode("local-sgd", {"period": 1}),
        Mode("hierarchical", {"groups": [[0, 1, 2, 3]], "period": 1}),
    ],
    ids=str,
)
def test_special_cases_of_synchronous_training_end_like_it(mode):
    ssgd, same = train(Mode("ssgd")), train(mode)
    assert [e.loss for e in same.evaluations] == pytest.approx([e.loss for e in ssgd.evaluations], rel=1e-3)


def test_the_order_in_which_workers_come_does_not_change_synchronous_training():
    slow = [Worker(w.index, Steady(3.0 - w.index / 2), batch=16) for w in STAFF]
    training = RealTraining(model("mlp"), DATA, 0.2)
    losses = [simulate(Mode("ssgd"), s, training, until=Until(updates=20)).evaluations[-1].loss for s in (STAFF, slow)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_stale_gradient_is_that_of_the_parameters_it_was_computed_on():
    run = RealTraining(model("mlp"), DATA, 0.2).start({0: 16, 1: 16}, 3)
    early, late = Gradient(0, 0, 0, 16), Gradient(1, 0, 0, 16)
    run.begin(early)
    run.begin(late)
    first = run.shared.flat
    alone = model("mlp").gradient(first, *drawn(1), np.full(16, 1 / 16, np.float32))[1]
    run.update(Update(0, (early,), (1.0,)), 0.0)
    moved = run.shared.flat
    run.update(Update(1, (late,), (0.5,)), 1.0)
    assert np.allclose(run.shared.flat, moved - np.float32(0.2) * np.float32(0.5) * alone, atol=1e-6)


def drawn(worker):
    rows = np.random.default_rng([3, 1, worker]).integers(len(DATA.labels), size=16)
    return DATA.samples[rows], DATA.labels[rows]


def test_staleness_hurts_at_a_rate_that_synchronous_training_bears():
    training = RealTraining(model("mlp"), DATA, 1.5, momentum=0.9)
    staff = [Worker(i, Steady(1.0, cv=0.5), batch=16) for i in range(16)]
    ssgd = simulate(Mode("ssgd"), staff, training, until=Until(progress=60))
    asgd = simulate(Mode("asgd"), staff, training, until=Until(progress=60))
    assert asgd.staleness.mean() > 10
    assert ssgd.evaluations[-1].loss < asgd.evaluations[-1].loss


def test_zeno_drops_what_would_raise_the_loss():
    history = train(Mode("zeno++"), updates=60)
    assert history.evaluations[-1].loss < history.evaluations[0].loss
    training = RealTraining(model("mlp"), DATA, 0.2)
    none = simulate(Mode("zeno++", {"least_score": 1e9}), STAFF, training, until=Until(updates=60, gradients=100))
    assert none.stopped == "gradients"
    assert none.dropped == 100


def test_who_leaves_takes_its_own_steps_with_it():
    training = RealTraining(model("mlp"), DATA, 0.2)
    history = simulate(
        Mode("local-sgd", {"period": 4}), STAFF, training, until=Until(progress=40), changes=[Change(6.3, 2, False)]
    )
    assert history.steps[-1].contributors == (0, 1, 3)
    assert history.accuracy > 0.5


def test_training_that_diverges_ends():
    training = RealTraining(model("mlp"), DATA, 10.0, weight_decay=1.0, evaluate_every=1.0)
    history = simulate(Mode("ssgd"), STAFF, training, until=Until(updates=500))
    assert history.stopped == "diverged"


def test_the_noise_scale_is_the_batch_at_which_noise_equals_signal():
    """Against a direct computation over all samples."""
    training = RealTraining(model("logistic"), DATA, 0.2)
    flat = training.start({0: 16}, 0).shared.flat
    each = np.array(
        [
            training.model.gradient(flat, DATA.samples[i : i + 1], DATA.labels[i : i + 1], np.ones(1, np.float32))[1]
            for i in range(len(DATA.labels))
        ]
    ).astype(np.float64)
    mean = each.mean(axis=0)
    exact = ((each - mean) ** 2).sum(axis=1).mean() / (mean @ mean)
    assert noise_scale(training, 16, draws=300) == pytest.approx(exact, rel=0.15)


def test_gain_of_an_update():
    assert gain(1.0, 256, 256, 100.0) == pytest.approx(1.0)
    assert gain(1.0, 128, 256, 0.0) == pytest.approx(1.0)  # without noise a smaller batch is as good
    assert gain(0.5, 128, 256, 0.0) == pytest.approx(0.75)
    assert gain(1.0, 32, 256, 1e6) < 0  # much more noise than the step is made for
    assert gain(0.125, 32, 256, 1e6, rate=0.01) == pytest.approx(0.125, rel=0.02)  # small steps add up
