"""Everything that users of DistributedDataParallel do by habit works, or raises an error that says what to do."""

import copy
import functools
import io

import numpy
import pytest
import torch
from models import CLASSES, Batches, Branches, convolution, mlp
from torch import nn
from torch.distributed.algorithms.join import Join

import dsgd.torch


def loss_of(module, batches, **arguments):
    pixels, labels = batches.next()
    return nn.functional.cross_entropy(module(pixels, **arguments), labels)


def started(session, module, rate):
    """A module that dsgd's optimizer updates."""
    attachment = dsgd.torch.attach(session, module)
    session.set_optimizer("sgd", lr=rate)
    session.start()
    return attachment


def make_step(module, attachment, batches):
    loss_of(module, batches).backward()
    return attachment.step()


@pytest.fixture
def batches():
    torch.manual_seed(1)
    return Batches(0)


@pytest.fixture
def attached(session, batches):
    """A module with dsgd's optimizer."""
    module = mlp()
    return module, started(session, module, 0.1)


@pytest.fixture
def wrapped(session, batches):
    """A module with an optimizer of PyTorch."""
    model = dsgd.torch.DistributedDataParallel(mlp(), session)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def values(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def changed(module, before):
    return [not torch.equal(one, other) for one, other in zip(before, module.parameters())]


# ---- Gradients


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_trains(attached, batches, set_to_none):
    module, attachment = attached
    for _ in range(3):
        module.zero_grad(set_to_none=set_to_none)
        before = values(module)
        assert make_step(module, attachment, batches).applied
        for parameter, value in zip(module.parameters(), before):
            assert torch.allclose(parameter, value - 0.1 * parameter.grad) and parameter.grad.abs().sum() > 0


def test_gradients_add_up_without_zero_grad(session, batches):
    module = mlp()
    twin = copy.deepcopy(module)
    model = dsgd.torch.DistributedDataParallel(module, session)
    for _ in range(2):
        pixels, labels = batches.next()
        for one in (model, twin):
            nn.functional.cross_entropy(one(pixels), labels).backward()
    for parameter, other in zip(module.parameters(), twin.parameters()):
        assert torch.equal(parameter.grad, other.grad)


def test_a_step_without_a_backward_pass_is_an_error(attached, batches):
    module, attachment = attached
    for prepare in (lambda: None, lambda: loss_of(module, batches), lambda: module(batches.next()[0])):
        prepare()
        with pytest.raises(dsgd.StateError, match="no gradient has come since the last step; call backward"):
            attachment.step()
    make_step(module, attachment, batches)
    with pytest.raises(dsgd.StateError, match="no gradient has come"):
        attachment.step()


def test_gradients_that_autograd_has_not_accumulated_are_an_error(attached, batches):
    module, attachment = attached
    gradients = torch.autograd.grad(loss_of(module, batches), list(module.parameters()))
    for parameter, gradient in zip(module.parameters(), gradients):
        parameter.grad = gradient
    with pytest.raises(dsgd.StateError, match="no gradient has come"):
        attachment.step()


def test_only_passes_in_no_sync_are_an_error(attached, batches):
    module, attachment = attached
    with attachment.no_sync():
        loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="outside no_sync"):
        attachment.step()


def test_a_second_backward_in_a_step_is_an_error(attached, batches):
    module, attachment = attached
    loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="got a second gradient in one step.*no_sync"):
        loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="got a second gradient in one step"):
        attachment.step()


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.zero_grad(),
        lambda module: module.zero_grad(set_to_none=True),
        lambda module: nn.utils.clip_grad_norm_(module.parameters(), 1e-3),
        lambda module: setattr(module[1].weight, "grad", torch.zeros_like(module[1].weight)),
        lambda module: module[1].bias.grad.mul_(2),
        lambda module: nn.utils.clip_grad_value_(module.parameters(), 1e-3),
        lambda module: module[1].weight.grad.data.mul_(2),
        lambda module: setattr(module[1].weight.grad, "data", torch.zeros_like(module[1].weight)),
        lambda module: module[1].weight.grad[0].data.zero_(),
        lambda module: module[1].weight.grad.detach().view(-1).chunk(2)[1].zero_(),
        lambda module: module[1].weight.grad.__setitem__(0, 0.0),
        lambda module: module[1].weight.grad.__imul__(2),
        lambda module: torch.zeros(CLASSES, out=module[3].bias.grad),
        lambda module: torch._foreach_mul_([parameter.grad for parameter in module.parameters()], 2.0),
        lambda module: unscale(module),
    ],
    ids=["zero_grad", "zero_grad_to_none", "clip_grad_norm", "assignment", "scaling", "clip_grad_value", "data", "new_data",
         "data_of_a_view", "views", "item", "operator", "out", "foreach", "unscale"],
)  # fmt: skip
def test_changing_a_gradient_before_the_step_is_an_error(attached, batches, change):
    module, attachment = attached
    loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="was changed between backward and the end of the step"):
        change(module)
        attachment.step()


def unscale(module):
    """As GradScaler.unscale_."""
    gradients = [parameter.grad for parameter in module.parameters()]
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(1), torch.ones(1))


@pytest.mark.parametrize("array", [lambda gradient: gradient.numpy(), lambda gradient: numpy.asarray(gradient.cpu().data)])
def test_arrays_of_a_gradient_are_read_only_before_the_step(attached, batches, array):
    module, attachment = attached
    loss_of(module, batches).backward()
    with pytest.raises(ValueError, match="read-only"):
        array(module[1].weight.grad)[:] = 0
    attachment.step()
    array(module[1].weight.grad)[:] = 0
    assert module[1].weight.grad.abs().sum() == 0


def test_a_gradient_may_be_read_before_the_step(attached, batches):
    module, attachment = attached
    before = module[1].weight.detach().clone()
    loss_of(module, batches).backward()
    gradient, copied = module[1].weight.grad, module[1].weight.grad.clone()
    norms = [gradient.norm(), gradient.data.norm(2), torch.norm(gradient.detach()), gradient.pow(2).sum().sqrt()]
    norms.append(torch.stack([torch.norm(one) for one in gradient]).norm())
    assert all(type(norm) is torch.Tensor and torch.allclose(norm, copied.norm()) for norm in norms)
    file = io.BytesIO()
    torch.save(gradient, file)
    file.seek(0)
    copies = [copied, copy.deepcopy(gradient), torch.load(file), torch.from_numpy(gradient.numpy().copy()), gradient + 0]
    for other in copies:
        assert type(other) is torch.Tensor and torch.equal(other, copied) and other.data_ptr() != gradient.data_ptr()
    copied.mul_(0.1).neg_().add_(gradient).sub_(gradient)  # in place, but into a copy
    assert repr(gradient) == repr(gradient.clone()) and f"{gradient[0, 0]:.3f}" == f"{gradient[0, 0].item():.3f}"
    assert gradient.tolist() == gradient.numpy().tolist() and gradient.isfinite().all() and not gradient.is_sparse
    assert attachment.step().applied
    assert torch.allclose(module[1].weight, before - 0.1 * gradient)
    gradient.mul_(2)  # between steps it is the host's
    gradient.data.zero_()


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch before 2 has no compile")
def test_a_compiled_module_trains(attached, batches):
    module, attachment = attached
    loss_of(module, batches).backward()  # compile looks at the gradients that are there, too
    attachment.step()
    compiled = torch.compile(module, backend="aot_eager")
    for count in (8, 4, 3):  # each is compiled anew
        module.zero_grad(set_to_none=False)
        before = values(module)
        pixels, labels = batches.next(count)
        nn.functional.cross_entropy(compiled(pixels), labels).backward()
        attachment.step()
        for parameter, value in zip(module.parameters(), before):
            assert parameter.grad.abs().sum() > 0 and torch.allclose(parameter, value - 0.1 * parameter.grad)


OPTIMIZERS = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    lambda parameters: torch.optim.AdamW(parameters),
    lambda parameters: torch.optim.Adam(parameters, foreach=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "sgd_foreach", "adamw", "adam_foreach"])
def test_a_step_of_an_optimizer_of_pytorch_is_an_error(attached, batches, make):
    module, attachment = attached
    optimizer = make(module.parameters())
    for before_the_step in (True, False):
        optimizer.zero_grad()
        loss_of(module, batches).backward()
        if not before_the_step:
            attachment.step()
            before = values(module)
        with pytest.raises(dsgd.StateError, match="an optimizer of PyTorch updates parameter '1.weight', which the session's"):
            optimizer.step()
        if before_the_step:
            assert attachment.step().applied
        else:
            assert not any(changed(module, before))


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


# Changes of a setting of the optimizer, and the setting; `lr` is 1 before.
CHANGES = {
    "exponential": (lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5).step, "'lr' of a SGD of PyTorch .* 1 to 0.5"),
    "a later step": (lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], 0.1).step, "'lr' .* 1 to 0.1"),
    "plateau": (
        lambda optimizer: functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0).step, 1),
        "'lr' .* 1 to 0.1",
    ),
    "momentum": (
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 1, 1, 10, base_momentum=0.8).step,
        "'momentum' .* 0.9 to 0.8",
    ),
    "the host": (lambda optimizer: functools.partial(halve, optimizer), "'lr' .* 1 to 0.5"),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_that_changes_in_an_optimizer_of_pytorch_is_an_error(attached, batches, change):
    module, attachment = attached
    make, text = CHANGES[change]
    optimizer = torch.optim.SGD(module.parameters(), lr=1, momentum=0.9)
    step = make(optimizer)

    def train():
        for _ in range(5):
            make_step(module, attachment, batches)
            step()

    with pytest.raises(dsgd.StateError, match=text):
        train()
    before = values(module)
    with pytest.raises(dsgd.StateError, match=text):  # and stays one
        loss_of(module, batches)
    assert all(torch.equal(a, b) for a, b in zip(values(module), before))


def test_a_warm_up_that_changes_the_rate_before_the_first_step_is_an_error(attached, batches):
    module, _ = attached
    optimizer = torch.optim.SGD(module.parameters(), lr=1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.25 * (epoch + 1))
    with pytest.raises(dsgd.StateError, match="'lr' of a SGD of PyTorch was changed from 1 to 0.25"):
        loss_of(module, batches)
    assert scheduler.get_last_lr() == [0.25]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_whose_rate_the_host_gives_to_the_session_is_followed(attached, session, batches):
    module, attachment = attached
    optimizer = torch.optim.SGD(module.parameters(), lr=1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for rate in (1, 0.5, 0.25):
        before = values(module)
        session.set_learning_rate(scheduler.get_last_lr()[0])
        make_step(module, attachment, batches)
        for parameter, value in zip(module.parameters(), before):
            assert torch.allclose(parameter, value - rate * parameter.grad, atol=1e-6)
        module.zero_grad()
        scheduler.step()
    with pytest.raises(dsgd.StateError, match="call session.set_learning_rate"):
        loss_of(module, batches)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_of_another_modules_optimizer_is_no_error(attached, batches):
    module, attachment = attached
    other = mlp()
    optimizer = torch.optim.SGD([{"params": module.parameters()}, {"params": other.parameters()}], lr=1)
    own = torch.optim.Adam(other.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(own, 0.5)
    for _ in range(4):
        make_step(module, attachment, batches)
        scheduler.step()
        optimizer.param_groups[1]["lr"] *= 0.5
    del optimizer


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_an_optimizer_that_is_made_later_is_found(attached, batches):
    module, attachment = attached
    with pytest.raises(dsgd.StateError, match="'lr' of a Adam of PyTorch"):
        for step in range(20):
            if step == 5:
                scheduler = torch.optim.lr_scheduler.ExponentialLR(torch.optim.Adam(module.parameters()), 0.5)
            make_step(module, attachment, batches)
            if step >= 5:
                scheduler.step()
    assert step == 8


def test_a_detached_module_trains_with_an_optimizer_of_pytorch(attached, batches):
    module, attachment = attached
    make_step(module, attachment, batches)
    attachment.detach()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = values(module)
    optimizer.step()
    assert all(changed(module, before)) and all(type(parameter.grad) is torch.Tensor for parameter in module.parameters())


def test_a_parameter_without_gradient_is_an_error_that_names_it(session, batches):
    module = Branches()
    model = dsgd.torch.DistributedDataParallel(module, session)
    with pytest.raises(dsgd.StateError, match="2 parameters got no gradient .*'second.weight', 'second.bias'; give find_unused") as caught:
        loss_of(model, batches, use=(True, False)).backward()
    assert caught.value.parameter == "second.weight"
    with pytest.raises(dsgd.StateError, match="got no gradient"):
        loss_of(model, batches).backward()


def test_a_parameter_that_no_worker_uses_keeps_value_and_gradient(session, batches):
    module = Branches()
    model = dsgd.torch.DistributedDataParallel(module, session, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    loss_of(model, batches).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    before = module.second.weight.detach().clone()
    loss_of(model, batches, use=(True, False)).backward()
    optimizer.step()
    assert module.second.weight.grad is None and torch.equal(module.second.weight, before)
    assert module.first.weight.grad is not None


@pytest.mark.parametrize("wrap", [lambda output: output, lambda output: [{"output": output, "loss": None}]])
def test_a_pass_that_uses_no_parameter_is_an_error(session, batches, wrap):
    class Sometimes(Branches):
        def forward(self, pixels, use):
            return wrap(super().forward(pixels) if use else pixels.sum())

    module = Sometimes()
    model = dsgd.torch.DistributedDataParallel(module, session, find_unused_parameters=True)
    pixels, _ = batches.next()
    with pytest.raises(dsgd.StateError, match="this forward pass used no parameter that requires a gradient"):
        model(pixels, use=False)
    model(pixels, use=True)
    with torch.no_grad():
        model(pixels, use=False)
    with model.no_sync():
        model(pixels, use=False)
    model.eval()
    model(pixels, use=False)
    model.attachment.detach()
    model.train()
    model(pixels, use=False)


def test_a_module_whose_output_has_an_unknown_type_is_no_error(session, batches):
    class Result:
        def __init__(self, logits):
            self.logits = logits

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, pixels):
            return Result(self.inner(pixels)), pixels.sum()

    model = dsgd.torch.DistributedDataParallel(Module(), session, find_unused_parameters=True)
    model(batches.next()[0])[0].logits.sum().backward()
    assert model.attachment.result.applied


def test_freezing_after_attaching_leaves_a_parameter_out(attached, batches):
    module, attachment = attached
    module[1].requires_grad_(False)
    before = values(module)
    make_step(module, attachment, batches)
    assert changed(module, before) == [False, False, True, True]


def test_unfreezing_after_attaching_is_an_error(session, batches):
    module = mlp()
    module[1].weight.requires_grad_(False)
    model = dsgd.torch.DistributedDataParallel(module, session)
    loss_of(model, batches).backward()
    module[1].weight.requires_grad_(True)
    with pytest.raises(dsgd.StateError, match="'1.weight' was frozen when the module was attached"):
        loss_of(model, batches).backward()


def test_unused_parameters_are_refused_with_early_updates():
    with dsgd.init(early_update=1) as session:
        message = "find_unused_parameters=True .* early_update = 1; set early_update = 0"
        with pytest.raises(dsgd.InvalidArgumentError, match=message):
            dsgd.torch.attach(session, mlp(), find_unused_parameters=True)
        with pytest.raises(dsgd.InvalidArgumentError, match=message):
            dsgd.torch.DistributedDataParallel(mlp(), session, find_unused_parameters=True)


def test_freezing_after_attaching_is_refused_before_the_step_with_early_updates(batches):
    with dsgd.init(early_update=1) as session:
        module = mlp()
        attachment = dsgd.torch.attach(session, module)
        session.set_optimizer("sgd", lr=0.1)
        session.start()
        module[1].requires_grad_(False)
        with pytest.raises(dsgd.StateError, match="'1.weight' was frozen after the module was attached.* early_update = 1") as caught:
            loss_of(module, batches)
        assert caught.value.parameter == "1.weight"
        with pytest.raises(dsgd.StateError, match="'1.weight' was frozen"):
            attachment.join()
        module[1].requires_grad_(True)
        loss_of(module, batches).backward()
        assert attachment.step().applied


def test_sparse_gradients_train(session):
    module = nn.EmbeddingBag(10, 4, sparse=True)
    before = module.weight.detach().clone()
    attachment = started(session, module, 1)
    module(torch.tensor([[1, 2]])).sum().backward()
    attachment.step()
    assert (module.weight - before).abs().sum(1).nonzero().flatten().tolist() == [1, 2]


def test_a_gradient_of_a_gradient_trains(attached, batches):
    module, attachment = attached
    before = values(module)
    loss = loss_of(module, batches)
    gradients = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    (loss + sum(gradient.pow(2).sum() for gradient in gradients)).backward()
    attachment.step()
    assert all(changed(module, before))


def test_a_graph_from_before_the_step_is_an_error(attached, batches):
    module, attachment = attached
    old = loss_of(module, batches)
    make_step(module, attachment, batches)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


# ---- Values


def test_load_state_dict_is_seen(attached, batches):
    module, attachment = attached
    other = mlp().state_dict()
    make_step(module, attachment, batches)
    module.load_state_dict(other)
    module.zero_grad()
    make_step(module, attachment, batches)
    for name, value in module.state_dict().items():
        gradient = dict(module.named_parameters())[name].grad
        assert torch.allclose(value, other[name] - 0.1 * gradient)


@pytest.mark.skipif(not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="PyTorch before 2.1 has no assign")
def test_load_state_dict_that_replaces_the_parameters_is_an_error(wrapped, batches):
    model, _ = wrapped
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(dsgd.StateError, match="parameters are not those that were attached"):
        loss_of(model, batches)


def test_a_parameter_that_is_replaced_or_added_is_an_error(attached, batches):
    module, attachment = attached
    module[3] = nn.Linear(32, CLASSES)
    with pytest.raises(dsgd.StateError, match="parameters are not those that were attached"):
        loss_of(module, batches)
    with pytest.raises(dsgd.StateError, match="parameters are not those that were attached"):
        attachment.step()


def replace_data(module):
    for parameter in module.parameters():
        parameter.grad.data = torch.zeros_like(parameter)


def replace_storage(module):
    for parameter in module.parameters():
        parameter.grad.set_(torch.zeros_like(parameter))


def convert_layout(module):
    module.zero_grad(set_to_none=False)
    module.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("replace", [replace_data, replace_storage, convert_layout])
def test_a_gradient_whose_memory_is_replaced_trains(session, batches, replace):
    module = convolution()
    attachment = started(session, module, 0.1)
    for step in range(3):
        if step > 0:
            replace(module)
        before = values(module)
        loss_of(module, batches).backward()
        gradients = [parameter.grad.clone() for parameter in module.parameters()]
        attachment.step()
        for parameter, value, gradient in zip(module.parameters(), before, gradients):
            assert gradient.abs().sum() > 0 and torch.allclose(parameter, value - 0.1 * gradient)


def test_moving_the_module_to_shared_memory_is_an_error(attached, batches):
    module, attachment = attached
    make_step(module, attachment, batches)
    module.share_memory()
    with pytest.raises(dsgd.StateError, match="share_memory"):
        loss_of(module, batches).backward()


def test_a_value_that_is_put_elsewhere_is_taken_back(attached, batches):
    module, attachment = attached
    for parameter in module.parameters():
        parameter.data = parameter.data + 1
    before = values(module)
    make_step(module, attachment, batches)
    for parameter, value in zip(module.parameters(), before):
        assert torch.allclose(parameter, value - 0.1 * parameter.grad)


def test_converting_the_module_after_attaching_is_an_error(attached, batches):
    module, attachment = attached
    module.to(torch.float64)
    with pytest.raises(dsgd.StateError, match="was float32 .* and is float64"):
        loss_of(module, Batches(0, torch.float64))
    with pytest.raises(dsgd.StateError, match="convert the module first"):
        attachment.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_train(session, batches, dtype):
    module = mlp().to(dtype)
    before = values(module)
    attachment = started(session, module, 0.5)
    loss_of(module, Batches(0, dtype)).backward()
    attachment.step()
    assert all(changed(module, before)) and all(parameter.dtype == dtype for parameter in module.parameters())


def test_another_memory_layout_trains(session, batches):
    module = convolution().to(memory_format=torch.channels_last)
    before = values(module)
    attachment = started(session, module, 0.01)
    make_step(module, attachment, batches)
    assert not torch.equal(module[0].weight, before[0]) and torch.allclose(module[0].weight, before[0], atol=0.1)


def test_scalars_and_empty_parameters_train(session):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.empty = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.empty(0, 4))

        def forward(self, x):
            return x * self.scale + self.empty.sum()

    module = Scaled()
    attachment = started(session, module, 1)
    for expected in (1.0, -1.0):
        module.zero_grad()
        module(torch.tensor(2.0)).backward()
        attachment.step()
        assert module.scale.item() == expected


def test_names_with_spaces_train(session, batches):
    module = mlp()
    module.add_module("last layer", nn.Linear(CLASSES, CLASSES))
    module.register_buffer("a\nbuffer", torch.zeros(1))
    attachment = dsgd.torch.attach(session, module)
    assert {"last%20layer.weight", "a%0Abuffer"} <= {parameter.name for parameter in session.parameters}
    session.set_optimizer("sgd", lr=0.1)
    session.start()
    before = values(module)
    loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="of parameter 'last layer.weight' was changed"):
        module[4].weight.grad.zero_()
    attachment.step()
    assert all(changed(module, before))


def test_copies_of_the_module_are_not_attached(wrapped, batches):
    model, _ = wrapped
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))
    for other in (copy.deepcopy(model), copy.deepcopy(model.module), loaded):
        loss_of(other, batches).backward()
        assert all(parameter.grad is not None for parameter in other.parameters())
        assert all(parameter.grad is None for parameter in model.parameters())
        for one, copied in zip(model.parameters(), other.parameters()):
            assert torch.equal(one, copied) and one.data_ptr() != copied.data_ptr()


# ---- The session


def test_swapped_arguments_are_an_error_that_shows_the_call(session):
    module = mlp()
    with pytest.raises(TypeError, match=r"'module' must be a torch.nn.Module, not 'Session'; call dsgd.torch.attach\(session, module\)"):
        dsgd.torch.attach(module, session)
    with pytest.raises(TypeError, match=r"not 'Session'; call dsgd.torch.DistributedDataParallel\(module, session\)"):
        dsgd.torch.DistributedDataParallel(session, module)
    with pytest.raises(TypeError, match="argument 'session' must be a dsgd.Session, not 'list'"):
        dsgd.torch.attach([0], module)
    assert not session.replicas and not session.parameters


def test_arguments_of_pytorchs_class_are_an_error_that_says_what_to_do(session):
    with pytest.raises(TypeError, match=r"takes no argument 'device_ids'; move the module to its device before"):
        dsgd.torch.DistributedDataParallel(mlp(), device_ids=[0])
    with pytest.raises(TypeError, match="takes no argument 'device_id'; see its help"):
        dsgd.torch.DistributedDataParallel(mlp(), session, device_id=0)
    with pytest.raises(TypeError, match="takes no argument 'device_ids'; move the module"):
        dsgd.torch.attach(session, mlp(), device_ids=[0])
    with pytest.raises(TypeError, match="argument 'session' must be a dsgd.Session, not 'NoneType'; call dsgd.torch"):
        dsgd.torch.DistributedDataParallel(mlp())
    assert not session.replicas and not session.parameters


def test_a_module_is_attached_before_the_start(session):
    session.add_replica().alloc(session.add_parameter("weight", 1))
    with pytest.raises(dsgd.StateError, match="do not call add_replica: attach adds one"):
        dsgd.torch.attach(session, mlp())
    session.start()
    with pytest.raises(dsgd.StateError, match="attach the module before Session.start"):
        dsgd.torch.attach(session, mlp())


def test_the_wrapper_starts_the_session_itself(session):
    dsgd.torch.DistributedDataParallel(mlp(), session)
    with pytest.raises(dsgd.StateError, match="started once; DistributedDataParallel starts its session by itself"):
        session.start()


def test_a_session_trains_one_module(session):
    dsgd.torch.DistributedDataParallel(mlp(), session)
    for attach in (dsgd.torch.attach, lambda session, module: dsgd.torch.DistributedDataParallel(module, session)):
        with pytest.raises(dsgd.StateError, match="the session trains a module already; attach one module that contains"):
            attach(session, mlp())


def test_a_module_with_nothing_to_train_is_an_error(session):
    with pytest.raises(dsgd.InvalidArgumentError, match="no parameter that requires a gradient"):
        dsgd.torch.attach(session, mlp().requires_grad_(False))


def test_a_module_on_another_device_is_an_error(session):
    with pytest.raises(dsgd.InvalidArgumentError, match="the module is on cpu, not on 'cuda:1'; move it first"):
        dsgd.torch.attach(session, mlp(), device="cuda:1")
    module = mlp()
    module[3] = nn.Linear(32, CLASSES, device="meta")
    with pytest.raises(dsgd.InvalidArgumentError, match="'1.weight' is on cpu and parameter '3.weight' on meta"):
        dsgd.torch.attach(session, module)


@pytest.mark.parametrize("settings, entries", [
    ({"devices": "cuda:0, cuda:1"}, "cuda:0, cuda:1"),
    ({"devices": "cuda:0, cuda:1", "devices_per_worker": 1}, "cuda:0"),
])
def test_a_module_that_is_on_no_device_of_the_worker_is_an_error(settings, entries):
    with dsgd.init(num_workers=1, **settings) as session:
        expected = f"the module is on cpu, but `devices` gives this worker {entries}; move the module there first"
        with pytest.raises(dsgd.InvalidArgumentError, match=expected):
            dsgd.torch.attach(session, mlp())
    with dsgd.init(num_workers=1, devices="cuda:0, cpu") as session:
        dsgd.torch.attach(session, mlp())


def test_an_attached_module_needs_an_optimizer(session, batches):
    module = mlp()
    attachment = dsgd.torch.attach(session, module)
    with pytest.raises(dsgd.StateError, match="no optimizer was chosen; call set_optimizer before start"):
        session.start()
    session.set_optimizer("sgd", lr=0.1)
    session.start()
    assert make_step(module, attachment, batches).applied


def test_the_wrapper_replaces_no_optimizer_of_dsgd(session):
    session.set_optimizer("sgd", lr=0.1)
    with pytest.raises(dsgd.StateError, match="use dsgd.torch.attach"):
        dsgd.torch.DistributedDataParallel(mlp(), session)


def test_backward_before_the_start_is_an_error(session, batches):
    module = mlp()
    dsgd.torch.attach(session, module)
    with pytest.raises(dsgd.StateError, match="start"):
        loss_of(module, batches).backward()


def test_steps_of_the_session_itself_are_an_error(attached):
    _, attachment = attached
    with pytest.raises(dsgd.StateError, match="a module is attached to this session"):
        attachment.session.step()
    with pytest.raises(dsgd.StateError, match="a module is attached to this session"):
        attachment.session.step_begin()


def test_step_is_an_error_where_backward_ends_the_step(wrapped, batches):
    model, _ = wrapped
    loss_of(model, batches).backward()
    with pytest.raises(dsgd.StateError, match="a step ends with backward"):
        model.attachment.step()


def test_join_needs_a_function_that_updates(wrapped):
    model, _ = wrapped
    with pytest.raises(dsgd.InvalidArgumentError, match="join\\(optimizer.step\\)"):
        model.attachment.join()
    with pytest.raises(dsgd.InvalidArgumentError, match="join\\(optimizer.step\\)"):
        with model.join():
            pass
    with pytest.raises(TypeError, match=r"must be a function, not 'SGD'; .* join\(optimizer.step\)"):
        model.join(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"`with Join\(\[model\]\)` is for models of PyTorch; .* model.join\(optimizer.step\)"):
        Join([model])


def test_the_weight_is_set_before_backward(attached, batches):
    module, attachment = attached
    loss_of(module, batches).backward()
    with pytest.raises(dsgd.StateError, match="set_weight\\(\\) was called after backward"):
        attachment.set_weight(2)
    assert attachment.step().weight == 1
    attachment.set_weight(2)
    assert make_step(module, attachment, batches).weight == 2


def test_a_step_that_is_not_applied_leaves_no_gradient(wrapped, batches):
    model, _ = wrapped
    model.set_weight(0)
    loss_of(model, batches).backward()
    assert not model.attachment.result.applied
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_closed_session_is_named(session, batches):
    module = mlp()
    attachment = started(session, module, 0.1)
    session.close()
    with pytest.raises(dsgd.ClosedError, match="call detach"):
        loss_of(module, batches).backward()
    attachment.detach()
    loss_of(module, batches).backward()


@pytest.mark.skipif(not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="this PyTorch scales gradients on GPUs only")
def test_a_gradient_scaler_works(wrapped, batches):
    model, optimizer = wrapped
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for scale, moved in ((1.0, True), (float("inf"), False)):
        before = values(model)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batches) * scale).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert all(changed(model, before)) == moved
    assert scaler.get_scale() == 512
