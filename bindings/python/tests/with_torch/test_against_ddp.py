"""Trains with dsgd and with torch.nn.parallel.DistributedDataParallel on Gloo, from the same values and data, and compares."""

import copy

import numpy
import pytest
import torch
import torch.distributed
from jobs import Job
from models import STEPS, Batches, Branches, Checkpointed, convolution, frozen, mlp, state, tied, train

import dsgd.torch

DECAY = STEPS // 4  # steps with the same learning rate
CASES = {
    "mlp": (mlp, {}, {}),
    "mlp_zeroed_in_place": (mlp, {}, {"set_to_none": False}),
    "convolution_with_batch_norm": (convolution, {}, {}),
    "frozen_layer": (frozen, {}, {}),
    "tied_weights": (tied, {}, {}),
    "reentrant_checkpoint": (Checkpointed, {}, {}),
    "unused_branches": (Branches, {"find_unused_parameters": True}, {"branches": True}),
    "accumulation": (mlp, {}, {"passes": 3}),
    "accumulation_with_unused_branches": (Branches, {"find_unused_parameters": True}, {"passes": 2, "branches": True}),
    "accumulation_with_batch_norm": (convolution, {}, {"passes": 2}),
    "clipping": (mlp, {}, {"clip": 0.1}),
}


def trained_by_ddp(module, rank, rendezvous, options, training):
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    try:
        model = torch.nn.parallel.DistributedDataParallel(module, **options)
        with_optimizer_of_torch(model, rank, training)
    finally:
        torch.distributed.destroy_process_group()
    return state(module)


def with_optimizer_of_torch(model, rank, training):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=DECAY, gamma=0.5)
    train(model, Batches(rank), rank, optimizer=optimizer, scheduler=scheduler, **training)


def modules_of(session, make):
    """Two with equal values, which differ from those of other workers until rank 0's are given out."""
    torch.set_num_threads(1)
    torch.manual_seed(session.rank)
    module = make()
    return module, copy.deepcopy(module)


def compare_wrapper(session, rendezvous, case):
    make, options, training = CASES[case]
    ours, theirs = modules_of(session, make)
    with_optimizer_of_torch(dsgd.torch.DistributedDataParallel(ours, session, **options), session.rank, training)
    return state(ours), trained_by_ddp(theirs, session.rank, rendezvous, options, training)


def compare_own_optimizer(session, rendezvous, case):
    make, options, training = CASES[case]
    ours, theirs = modules_of(session, make)
    attachment = dsgd.torch.attach(session, ours, **options)
    session.set_optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
    session.start()
    steps = iter(range(1, STEPS + 1))

    def after():
        attachment.step()
        if (step := next(steps)) % DECAY == 0:
            session.set_learning_rate(0.1 * 0.5 ** (step // DECAY))

    ours.no_sync = attachment.no_sync
    train(ours, Batches(session.rank), session.rank, after=after, **training)
    return state(ours), trained_by_ddp(theirs, session.rank, rendezvous, options, training)


def results(function, tmp_path, case):
    with Job(function, 2, (str(tmp_path / "rendezvous"), case)) as job:
        return [job.result(rank, timeout=300) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_of_torch_has_the_same_bits(case, tmp_path):
    for ours, theirs in results(compare_wrapper, tmp_path, case):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert numpy.array_equal(value, theirs[name]), f"{name} differs by {numpy.abs(value - theirs[name]).max()}"


@pytest.mark.parametrize("case", [case for case in CASES if case != "clipping"])
def test_an_optimizer_of_dsgd_has_the_same_values_but_for_rounding(case, tmp_path):
    for ours, theirs in results(compare_own_optimizer, tmp_path, case):
        for name, value in ours.items():
            assert numpy.allclose(value, theirs[name], rtol=1e-3, atol=1e-4), (
                f"{name} differs by {numpy.abs(value - theirs[name]).max()}"
            )
