"""Modules that are attached to jobs of two workers."""

import os
import signal
import time

import jobs
import pytest
import torch
from jobs import Job
from models import Batches, Branches, convolution, mlp, train
from torch import nn

import dsgd.torch


class Odd(nn.Module):
    """With buffers of types that dsgd has and has not."""

    def __init__(self, rank):
        super().__init__()
        self.linear = nn.Linear(64, 5)
        self.register_buffer("mask", torch.tensor([rank == 0, False, True]))
        self.register_buffer("small", torch.full((3,), 10 + rank, dtype=torch.int8))
        self.register_buffer("count", torch.tensor(100 + rank))
        self.register_buffer("transposed", torch.arange(6.0).reshape(2, 3).t() + rank)
        self.register_buffer("private", torch.full((2,), rank, dtype=torch.complex64), persistent=False)
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("nothing", None)

    def forward(self, pixels):
        self.count = self.count + 1  # another tensor
        self.mask[1] = True
        return self.linear(pixels.flatten(1))


def buffers_of(module):
    return {name: buffer.tolist() for name, buffer in module.named_buffers()}


def odd_buffers(session):
    module = Odd(session.rank)
    model = dsgd.torch.DistributedDataParallel(module, session)
    given = buffers_of(module)
    module.small += session.rank
    pixels, labels = Batches(session.rank).next()
    nn.functional.cross_entropy(model(pixels), labels).backward()
    return given, buffers_of(module)


def test_all_workers_hold_the_buffers_of_rank_0():
    expected = {
        "mask": [True, False, True], "small": [10] * 3, "count": 100, "transposed": [[0, 3], [1, 4], [2, 5]],
        "private": [0, 0], "empty": [],
    }  # fmt: skip
    for given, after in jobs.run(odd_buffers):
        assert given == expected
        assert after == {**expected, "mask": [True, True, True], "count": 101}


def own_buffers(session):
    module = convolution()
    dsgd.torch.DistributedDataParallel(module, session, broadcast_buffers=False)
    pixels, labels = Batches(session.rank).next()
    nn.functional.cross_entropy(module(pixels), labels).backward()
    return module[1].running_mean.tolist()


def test_buffers_stay_with_their_worker_on_request():
    first, second = jobs.run(own_buffers)
    assert first != second


def uneven(session, own_optimizer):
    torch.manual_seed(1)
    module, batches = convolution(), Batches(session.rank)
    if own_optimizer:
        attachment = dsgd.torch.attach(session, module)
        session.set_optimizer("sgd", lr=0.1, momentum=0.9)
        session.start()
        after, update = attachment.step, None
    else:
        model = dsgd.torch.DistributedDataParallel(module, session)
        attachment = model.attachment
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        after, update = (lambda: None), optimizer.step
    for _ in range(2):  # epochs
        steps = 3 + 4 * session.rank
        train(module, batches, session.rank, after=after if own_optimizer else optimizer.step, steps=steps)
        module.train()
        attachment.join(update)
    return attachment.result.step, [value.tolist() for value in module.state_dict().values()]


@pytest.mark.parametrize("own_optimizer", [True, False])
def test_workers_with_different_numbers_of_batches_end_alike(own_optimizer):
    first, second = jobs.run(uneven, arguments=(own_optimizer,))
    assert first == second and first[0] == 2 * 8 - 1


def uneven_with_unused(session, clear):
    torch.manual_seed(1)
    module, batches = Branches(), Batches(session.rank)
    model = dsgd.torch.DistributedDataParallel(module, session, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    last_used = None
    for batch in range(4 + 4 * session.rank):
        if batch == 6:  # no worker uses the second branch from here on
            last_used = module.second.weight.tolist()
        pixels, labels = batches.next()
        nn.functional.cross_entropy(model(pixels, (True, batch < 6)), labels).backward()
        optimizer.step()
        if clear != "never":
            optimizer.zero_grad(set_to_none=clear == "to_none")
    model.join(optimizer.step)
    return {name: value.tolist() for name, value in module.state_dict().items()}, last_used


@pytest.mark.parametrize("clear", ["to_none", "to_zero", "never"])
def test_unused_parameter_is_equal_on_a_joined_worker(clear):
    (first, _), (second, last_used) = jobs.run(uneven_with_unused, arguments=(clear,))
    assert first == second
    # Where `.grad` is not None, the optimizer applies momentum and weight decay.
    assert (first["second.weight"] == last_used) == (clear == "to_none")


def train_branches(session):
    torch.manual_seed(1)
    module, batches = Branches(), Batches(session.rank)
    attachment = dsgd.torch.attach(session, module, find_unused_parameters=True)
    session.set_optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
    session.start()
    for batch in range(8):  # the second branch: on no worker, on rank 0, on both
        pixels, labels = batches.next()
        used = batch % 3 == 2 or batch % 3 == 1 and session.rank == 0
        module.zero_grad()
        nn.functional.cross_entropy(module(pixels, (True, used)), labels).backward()
        attachment.step()
    return [value.tolist() for value in module.state_dict().values()], session.metrics()['dsgd_calls_total{call="allreduce"}']


def test_unused_parameters_need_no_all_reduce_where_absent_gradients_count_as_zero():
    (values, calls), (other, _) = jobs.run(train_branches)
    (same, none), _ = jobs.run(train_branches, absent="zero")
    assert jobs.run(train_branches, min_workers=2, max_workers="02", rejoin_timeout="0s")[0] == (values, calls)  # not elastic
    assert values == other == same
    assert (calls, none) == (8, 0)


def loses_the_root_of_the_buffers(session):
    """Rank 0 ends when the others wait for its buffers."""
    torch.manual_seed(1)
    module, batches = convolution(), Batches(session.rank)
    attachment = dsgd.torch.attach(session, module)
    session.set_optimizer("sgd", lr=0.1, momentum=0.9)
    session.start()
    for _ in range(3):
        train(module.train(), batches, session.rank, after=attachment.step, steps=1)
    if session.rank == 0:
        attachment._buffers.broadcast = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    sizes = []
    for _ in range(5):
        train(module.train(), batches, session.rank, after=attachment.step, steps=1)
        sizes.append(attachment.result.size)
    return sizes, [value.tolist() for value in module.state_dict().values()]


def test_workers_go_on_when_the_root_of_the_buffers_is_lost():
    with Job(loses_the_root_of_the_buffers, 3, min_workers=1, lease="500ms") as job:
        (sizes, values), other = job.result(1), job.result(2)
    assert other == (sizes, values) and sizes == [3, 2, 2, 2, 2]


def draws_the_rest(session, loses):
    module = mlp()
    attachment = dsgd.torch.attach(session, module)
    session.set_optimizer("sgd", lr=0.01)
    session.start()
    shard, drawn, joins = session.shard(100, seed=1), 0, []
    while not joins or not joins[-1]:
        while len(samples := shard.next(1 if session.rank else 10)):
            drawn += len(samples)
            pixels = torch.ones(len(samples), 1, 8, 8)
            module.zero_grad()
            module(pixels).sum().backward()
            attachment.step()
            if loses and session.rank == 1 and drawn == 8:
                os.kill(os.getpid(), signal.SIGKILL)
        joins.append(attachment.join())
    return drawn, joins


def test_join_returns_where_a_shard_may_have_the_samples_of_a_lost_worker():
    with Job(draws_the_rest, arguments=(True,), min_workers=1, lease="500ms") as job:
        assert job.result(0) == (92, [False, True])
    assert jobs.run(draws_the_rest, arguments=(False,)) == [(50, [True])] * 2


class Averaged(nn.Module):
    """Replaces its buffer in each pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 5)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, pixels):
        self.mean = 0.5 * self.mean + 0.5
        return self.linear(pixels.flatten(1))


def saves_a_replaced_buffer(session, folder, steps):
    module = Averaged()
    attachment = dsgd.torch.attach(session, module, broadcast_buffers=False)
    session.set_optimizer("sgd", lr=0.1)
    session.start()
    if steps == 0:
        session.load_checkpoint(folder)
    for _ in range(steps):
        module.zero_grad()
        module(torch.ones(2, 1, 8, 8)).sum().backward()
        attachment.step()
    if steps > 0:
        session.save_checkpoint(folder)
    return module.mean.item()


def test_a_checkpoint_has_a_buffer_that_the_module_has_replaced(tmp_path):
    assert jobs.run(saves_a_replaced_buffer, arguments=(str(tmp_path), 2)) == [0.75] * 2
    assert jobs.run(saves_a_replaced_buffer, arguments=(str(tmp_path), 0)) == [0.75] * 2


class Between(torch.autograd.Function):
    """Calls a function in the backward pass."""

    @staticmethod
    def forward(context, value, call):
        context.call = call
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        context.call()
        return gradient, None


class Calling(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.call = nn.Linear(64, 8), nn.Linear(8, 5), lambda: None

    def forward(self, pixels):
        return self.last(Between.apply(self.first(pixels.flatten(1)), self.call))


def fails_during_backward(session, set_to_none):
    torch.manual_seed(1)
    module = Calling()
    attachment = dsgd.torch.attach(session, module)
    session.set_optimizer("sgd", lr=0.1)
    session.start()

    def wait_for_the_failure():
        while not attachment._operation.done:
            time.sleep(0.001)

    outcomes = []
    for step in range(4):
        session.set_learning_rate(0.2 if step == 1 and session.rank == 0 else 0.1)
        module.call = wait_for_the_failure if step == 1 else lambda: None
        module.zero_grad(set_to_none)
        try:
            module(torch.ones(2, 1, 8, 8)).sum().backward()
            outcomes.append(attachment.step().step)
        except dsgd.MismatchError as error:
            outcomes.append(error.operation)
    return outcomes, [value.tolist() for value in module.state_dict().values()]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_module_trains_on_after_a_step_that_failed_during_backward(set_to_none):
    first, second = jobs.run(fails_during_backward, arguments=(set_to_none,))
    assert first == second and first[0] == [0, "step 1", 1, 2]


def find_unused(session):
    with pytest.raises(dsgd.InvalidArgumentError, match="find_unused_parameters=True .* set absent = zero on all workers"):
        dsgd.torch.attach(session, Branches(), find_unused_parameters=True)


@pytest.mark.parametrize("option", [{"min_workers": 1}, {"max_workers": 3}, {"rejoin_timeout": "1s"}], ids=str)
def test_an_elastic_job_refuses_unused_parameters_that_need_an_all_reduce(option):
    jobs.run(find_unused, **option)


def uneven_without_join(session):
    """Without buffers, so that the all-reduce for unused parameters is the only collective beside the steps."""
    module, batches = Branches(), Batches(session.rank)
    model = dsgd.torch.DistributedDataParallel(module, session, find_unused_parameters=True)
    for _ in range(4 if session.rank == 1 else 8):
        pixels, labels = batches.next()
        module.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(pixels, (True, False)), labels).backward()


def test_missing_join_is_named_where_unused_parameters_are_found():
    with Job(uneven_without_join) as job:
        failure = job.failure(0)
        assert isinstance(failure, dsgd.WorkerLostError) and failure.rank == 1, failure
        assert "all-reduce" in failure.operation, failure.operation
        assert "This all-reduce finds the parameters that no worker uses (find_unused_parameters)" in str(failure)
        assert "each calls join() after its last one" in str(failure)
        job.result(1)


def frozen_while_joined(session):
    torch.manual_seed(1)
    module, batches = mlp(), Batches(session.rank)
    model = dsgd.torch.DistributedDataParallel(module, session)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in range(4 + 4 * session.rank):
        if batch == 3:
            module[1].requires_grad_(False)
        pixels, labels = batches.next()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    model.join(optimizer.step)
    return [value.tolist() for value in module.state_dict().values()]


def test_a_parameter_that_was_frozen_stays_as_it_is_on_a_worker_that_has_joined():
    first, second = jobs.run(frozen_while_joined)
    assert first == second


def weighted(session):
    torch.manual_seed(1)
    module = mlp()
    model = dsgd.torch.DistributedDataParallel(module, session)
    model.set_weight(3 - 2 * session.rank)
    pixels, labels = Batches(session.rank).next()
    nn.functional.cross_entropy(model(pixels), labels).backward()
    mean = module[1].weight.grad.clone()
    torch.manual_seed(1)
    parts = []
    for rank in range(2):
        alone = mlp()
        alone.load_state_dict(module.state_dict())
        pixels, labels = Batches(rank).next()
        nn.functional.cross_entropy(alone(pixels), labels).backward()
        parts.append(alone[1].weight.grad)
    return bool(torch.allclose(mean, (3 * parts[0] + parts[1]) / 4))


def test_the_mean_is_weighted():
    assert jobs.run(weighted) == [True, True]


def both_optimizers(session):
    """By habit, the optimizer of PyTorch steps, too, and would move each worker by its own gradient."""
    module = mlp()
    attachment = dsgd.torch.attach(session, module)
    session.set_optimizer("sgd", lr=0.1)
    session.start()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    train(module, Batches(session.rank), session.rank, after=lambda: (attachment.step(), optimizer.step()))


def test_a_second_optimizer_is_found_out():
    with Job(both_optimizers) as job:
        texts = [str(job.failure(rank)) for rank in range(2)]
        assert any("an optimizer of PyTorch updates parameter '1.weight'" in text for text in texts), texts


def one_leaves_out(session):
    model = dsgd.torch.DistributedDataParallel(mlp(), session)
    pixels, _ = Batches(session.rank).next()
    output = model(pixels)
    (model.module[1](pixels.flatten(1)) if session.rank == 1 else output).sum().backward()


def test_a_gradient_that_is_missing_on_one_worker_ends_the_others():
    with Job(one_leaves_out) as job:
        assert "got no gradient in this backward pass: '3.weight', '3.bias'" in str(job.failure(1))
        failure = job.failure(0)
        assert failure.status is dsgd.Status.ABORTED and "got no gradient" in str(failure) and failure.rank == 1


def frozen_at_rank_1(session):
    module = mlp()
    next(module.parameters()).requires_grad_(session.rank == 0)
    dsgd.torch.DistributedDataParallel(module, session)


def test_a_layer_that_is_frozen_on_one_worker_is_named():
    with Job(frozen_at_rank_1) as job:
        for rank in range(2):
            error = job.failure(rank)
            assert isinstance(error, dsgd.MismatchError)
            name = next(mlp().named_parameters())[0]
            assert f"rank 0 has 'parameter {name} float32" in error.message and f"rank 1 has 'parameter {name} float32" in error.message
            assert " untrained " in error.message and "freeze the same ones on all workers" in error.message
