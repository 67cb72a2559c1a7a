package dsgd

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestStepUpdatesBoundSlicesInPlace(t *testing.T) {
	single(t, func(w *worker) {
		_, _, value, gradient := w.model("p", 1, 2, 3)
		copy(gradient, []float32{2, 4, -2})
		result := w.step(8)
		w.expect(equal(value, []float32{0, 0, 4}), "values are %v", value)
		w.expect(equal(gradient, []float32{2, 4, -2}), "gradients were changed to %v", gradient)
		w.expect(result.Step == 0 && result.Size == 1 && result.Applied && !result.AllDone && !result.Stop &&
			result.Weight == 8 && isNaN(result.GradientNorm), "result %+v", result)
		w.expect(w.step(8).Step == 1, "the second step is not step 1")
	})
}

func TestGradientNormIsReportedWhenConfigured(t *testing.T) {
	job(t, 1, settings{"gradient_norm": "1"}, func(w *worker) {
		_, _, _, gradient := w.model("p", 0, 0)
		gradient[0], gradient[1] = 3, 4
		result := w.step(1)
		w.expect(result.GradientNorm == 5, "norm %v", result.GradientNorm)
	})
}

func TestAStepWhoseGradientOverflowsChangesNothingAndHalvesTheLossScale(t *testing.T) {
	job(t, 1, settings{"loss_scale": "dynamic"}, func(w *worker) {
		_, _, value, gradient := w.model("p", 0, 0)
		before := append([]float32{}, value...)
		w.expect(w.LossScale() == 65536, "loss scale %v", w.LossScale())
		gradient[1] = float32(math.Inf(1))
		result := w.step(1)
		w.expect(!result.Applied && !result.AllDone && w.LossScale() == 32768, "%+v, loss scale %v", result, w.LossScale())
		w.expect(equal(value, before), "values are %v", value)
		gradient[0], gradient[1] = 3*32768, 4*32768
		result = w.step(1)
		w.expect(result.Applied && result.GradientNorm == 5, "%+v", result)
		w.ok(w.Close())
		w.expect(w.LossScale() == -1, "loss scale %v of a closed session", w.LossScale())
	})
}

func TestGradientsThatAreNotFiniteSkipTheStepOrFailIt(t *testing.T) {
	job(t, 1, settings{"nonfinite": "skip"}, func(w *worker) {
		_, _, value, gradient := w.model("p", 0, 0)
		before := append([]float32{}, value...)
		gradient[0], gradient[1] = float32(math.NaN()), float32(math.Inf(1))
		result := w.step(1)
		w.expect(result.Skipped && !result.Applied && result.NonFinite == 2 && result.NonFiniteRank == 0, "%+v", result)
		w.expect(equal(value, before), "values are %v", value)
		gradient[0], gradient[1] = 1, 1
		result = w.step(1)
		w.expect(result.Applied && !result.Skipped && result.NonFinite == 0 && result.NonFiniteRank == -1, "%+v", result)
	})
	job(t, 1, settings{"nonfinite": "fail"}, func(w *worker) {
		_, _, _, gradient := w.model("p", 0, 0)
		gradient[1] = float32(math.Inf(-1))
		_, err := w.Step(context.Background(), 1)
		w.expect(errors.Is(err, ErrNonFinite) && strings.Contains(err.Error(), "the first at index 1"), "%v", err)
		gradient[1] = 1
		w.expect(w.step(1).Step == 0, "the failed step was counted")
	})
}

func TestHalvesOnTheWireLoseNoMoreThanOneRounding(t *testing.T) {
	job(t, 2, settings{"wire": "bf16"}, func(w *worker) {
		_, _, value, gradient := w.model("p", 0, 0)
		before := append([]float32{}, value...)
		for i := range gradient {
			gradient[i] = float32(1+w.Rank()) / 3
		}
		for i := 0; i < 30; i++ {
			w.step(1)
		}
		for i := range value {
			mean := float64(before[i]-value[i]) / (30 * 0.5)
			w.expect(math.Abs(mean/0.5-1) < 0.001, "element %d has the mean %v", i, mean)
		}
	})
}

func TestAllocGivesZeroedAlignedMemoryThatIsTrained(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("p", Float64, []int{2, 3})
		w.ok(err)
		count, err := w.AddParameter("count", Int64, nil, Untrained)
		w.ok(err)
		r, err := w.AddReplica("")
		w.ok(err)
		buffers, err := Alloc[float64](r, p)
		w.ok(err)
		again, err := Alloc[float64](r, p)
		w.ok(err)
		scalar, err := Alloc[int64](r, count)
		w.ok(err)
		w.expect(equal(buffers.Value, make([]float64, 6)) && equal(buffers.Gradient, make([]float64, 6)), "%+v", buffers)
		w.expect(&buffers.Value[0] == &again.Value[0] && &buffers.Gradient[0] == &again.Gradient[0], "other memory")
		w.expect(uintptr(unsafe.Pointer(&buffers.Value[0]))%64 == 0, "values at %p", &buffers.Value[0])
		w.expect(len(scalar.Value) == 1 && scalar.Gradient == nil, "untrained buffers %+v", scalar)
		w.ok(w.SetOptimizer("sgd", "lr=0.5"))
		w.ok(w.Start(context.Background()))
		buffers.Gradient[5] = 2
		w.step(1)
		w.expect(equal(buffers.Value, []float64{0, 0, 0, 0, 0, -1}), "values are %v", buffers.Value)
	})
}

func TestParameterTellsWhatItIs(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("dense.weight", Float32, []int{64, 10})
		w.ok(err)
		shape := p.Shape()
		w.expect(p.Name() == "dense.weight" && p.DType() == Float32 && len(shape) == 2 && shape[0] == 64 && shape[1] == 10,
			"%q %v %v", p.Name(), p.DType(), shape)
		shape[0] = 1
		w.expect(p.Shape()[0] == 64, "the shape can be changed from outside")
		_, err = w.AddParameter("dense.weight", Float32, []int{64, 10})
		w.expect(strings.Contains(w.failing(err, ErrExists).Error(), "dense.weight"), "%v", err)
		_, err = w.AddParameter("negative", Float32, []int{-1})
		w.failing(err, ErrInvalidArgument)
		_, err = w.AddParameter("integers", Int32, []int{1})
		w.failing(err, ErrInvalidArgument)
		_, err = w.AddParameter("dtype", DType(99), []int{1})
		w.failing(err, ErrInvalidArgument)
		_, err = w.AddReplica("abacus:0")
		w.failing(err, ErrUnsupported)
	})
}

func TestBindRefusesWrongBuffers(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("dense.bias", Float32, []int{4})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		four := make([]float32, 4)
		for _, c := range []struct {
			name  string
			err   error
			names string
		}{
			{"short values", Bind(r, p, make([]float32, 3), four), "dense.bias"},
			{"long gradients", Bind(r, p, four, make([]float32, 5)), "dense.bias"},
			{"no values", Bind(r, p, nil, four), "value"},
			{"no gradients", Bind(r, p, four, nil), "'dense.bias' is trained"},
			{"other dtype", Bind(r, p, make([]int32, 4), make([]int32, 4)), "int32"},
			{"same byte count", Bind(r, p, make([]float64, 2), make([]float64, 2)), "float64"},
		} {
			failed := w.failing(c.err, ErrInvalidArgument)
			w.expect(strings.Contains(failed.Message, c.names), "%s: %v does not name %s", c.name, c.err, c.names)
		}
		_, err = Alloc[float64](r, p)
		w.failing(err, ErrInvalidArgument)
		w.expect(len(w.core.bound) == 0, "refused buffers stay pinned: %v", w.core.bound)
		w.expect(strings.Contains(w.failing(w.Start(context.Background()), ErrState).Message, "dense.bias"), "unbound parameter")
	})
}

func TestBindAgainBetweenSteps(t *testing.T) {
	single(t, func(w *worker) {
		r, p, value, _ := w.model("p", 1)
		gradient := []float32{2}
		w.ok(Bind(r, p, value, gradient))
		w.step(1)
		w.expect(value[0] == 0, "the value is %v", value[0])
		other := []float32{10}
		w.ok(Bind(r, p, other, gradient))
		w.step(1)
		w.expect(other[0] == 9 && value[0] == 0, "values are %v and %v", other[0], value[0])
		w.expect(len(w.core.bound) == 1, "%d pairs of buffers are pinned", len(w.core.bound))
	})
}

func TestReplicasShareTheStep(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{1})
		w.ok(err)
		replicas, values, gradients := make([]*Replica, 2), make([][]float32, 2), make([][]float32, 2)
		for i := range replicas {
			replicas[i], err = w.AddReplica("cpu")
			w.ok(err)
			values[i], gradients[i] = []float32{float32(i)}, []float32{float32(i)}
			w.ok(Bind(replicas[i], p, values[i], gradients[i]))
		}
		w.ok(w.SetOptimizer("sgd", "lr=1"))
		w.ok(w.Start(context.Background()))
		w.expect(values[1][0] == 0, "the second replica starts with %v, not the first one's value", values[1][0])
		w.step(2) // the mean of 0 and 1
		w.expect(values[0][0] == -0.5 && values[1][0] == -0.5, "values are %v", values)
		w.ok(replicas[0].SetWeight(1))
		w.ok(replicas[1].SetWeight(3))
		w.step(4) // the mean is now 3/4
		w.expect(values[0][0] == -1.25 && values[1][0] == -1.25, "values are %v", values)
		w.failing(replicas[0].SetWeight(math.NaN()), ErrInvalidArgument)
	})
}

func TestOverlappedStep(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{1})
		w.ok(err)
		q, err := w.AddParameter("q", Float32, []int{1})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		value, gradient := make([]float32, 2), []float32{1, 2}
		w.ok(Bind(r, p, value[:1], gradient[:1]))
		w.ok(Bind(r, q, value[1:], gradient[1:]))
		w.ok(w.SetOptimizer("sgd", "lr=1"))
		w.failing(w.onlyError(w.StepBegin(1)), ErrState) // before start
		w.ok(w.Start(context.Background()))
		w.failing(r.GradientReady(p), ErrState) // no step begun

		op, err := w.StepBegin(1)
		w.ok(err)
		w.ok(r.GradientReady(q))
		w.expect(strings.Contains(w.failing(r.GradientReady(q), ErrState).Message, "q"), "ready twice")
		w.expect(op.Err() == nil, "a step ended without all gradients: %v", op.Err())
		_, err = op.StepResult()
		w.failing(err, ErrState)
		w.failing(w.onlyError(w.StepBegin(1)), ErrState) // one at a time
		w.failing(Bind(r, p, value[:1], gradient[:1]), ErrState)
		w.ok(r.GradientReady(p))
		<-op.Done()
		w.ok(op.Err())
		w.ok(op.Wait(background))
		result, err := op.StepResult()
		w.ok(err)
		w.expect(result.Step == 0 && result.Applied && equal(value, []float32{-1, -2}), "%+v %v", result, value)

		op, err = w.StepBegin(1) // waiting marks nothing
		w.ok(err)
		w.ok(r.GradientReady(q))
		soon, cancel := context.WithTimeout(background, 30*time.Millisecond)
		w.expect(errors.Is(op.Wait(soon), context.DeadlineExceeded), "the step has ended without a gradient")
		cancel()
		w.ok(w.StepFlush())
		w.ok(op.Wait(background))
		w.expect(equal(value, []float32{-2, -4}), "values are %v", value)

		op, err = w.StepBegin(1) // all are marked by the flush
		w.ok(err)
		w.ok(w.StepFlush())
		<-op.Done()
		w.ok(op.Err())
		w.expect(equal(value, []float32{-3, -6}), "values are %v", value)

		w.ok(r.GradientAbsent(p)) // of the next step
		w.step(1)
		w.expect(equal(value, []float32{-3, -8}), "values are %v", value)

		barrier, err := w.BarrierAsync()
		w.ok(err)
		w.ok(barrier.Wait(background))
		_, err = barrier.StepResult()
		w.failing(err, ErrInvalidArgument)
		w.expect(barrier.ID() != op.ID() && barrier.ID() != 0, "ids are %d and %d", barrier.ID(), op.ID())
	})
}

func (w *worker) onlyError(_ any, err error) error { return err }

func TestParameterSettings(t *testing.T) {
	single(t, func(w *worker) {
		_, p, value, gradient := w.model("p", 0)
		gradient[0] = 1
		w.ok(p.Set("rate=0.5"))
		w.step(1)
		w.expect(value[0] == -0.25, "value %v at half the rate of 0.5", value[0])
		w.ok(w.SetLearningRate(2))
		w.step(1)
		w.expect(value[0] == -1.25, "value %v at half the rate of 2", value[0])
		w.ok(p.Set("frozen=1"))
		w.step(1)
		w.expect(value[0] == -1.25, "a frozen value moved to %v", value[0])
		w.failing(p.Set("rat=1"), ErrInvalidArgument)
		w.failing(w.SetLearningRate(-1), ErrInvalidArgument)
	})
}

func TestOptimizerNoneLeavesTheMeanInTheGradients(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{1})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		value, gradient := []float32{7}, []float32{float32(w.Rank())}
		w.ok(Bind(r, p, value, gradient))
		w.ok(w.SetOptimizer("none", ""))
		w.ok(w.Start(context.Background()))
		w.step(1)
		w.expect(value[0] == 7 && gradient[0] == 0.5, "value %v, gradient %v", value[0], gradient[0])
	})
}

func TestUnknownNamesAreRefusedWithTheNearest(t *testing.T) {
	single(t, func(w *worker) {
		for nearest, err := range map[string]error{
			"adamw":     w.SetOptimizer("adamww", ""),
			"momentum":  w.SetOptimizer("sgd", "momentun=0.9"),
			"allreduce": w.SetStrategy(context.Background(), "alreduce", ""),
		} {
			w.expect(strings.Contains(w.failing(err, ErrInvalidArgument).Message, nearest), "%v does not name %s", err, nearest)
		}
	})
}

func TestDigestFollowsTheValues(t *testing.T) {
	single(t, func(w *worker) {
		_, _, value, gradient := w.model("p", 1, 2)
		before, err := w.Digest()
		w.ok(err)
		gradient[0] = 1
		w.step(1)
		after, err := w.Digest()
		w.ok(err)
		value[0] = 1
		back, err := w.Digest()
		w.ok(err)
		w.expect(before != after && before == back, "digests %x, %x, %x", before, after, back)
	})
}

func TestZeroElementParameters(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("nothing", Float32, []int{0, 5})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		w.ok(Bind(r, p, []float32{}, []float32{}))
		w.ok(w.Start(context.Background()))
		w.expect(w.step(1).Applied, "no step over nothing")
		buffers, err := Alloc[float32](r, p)
		w.ok(err)
		w.expect(len(buffers.Value) == 0 && len(buffers.Gradient) == 0, "%+v", buffers)
	})
}

func TestDLPackTensorsGoOutAndIn(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{2})
		w.ok(err)
		state, err := w.AddParameter("state", Int32, []int{1}, Untrained)
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		buffers, err := Alloc[float32](r, p)
		w.ok(err)
		_, err = Alloc[int32](r, state)
		w.ok(err)
		value, gradient, err := r.ExportDLPack(p)
		w.ok(err)
		w.expect(value != nil && gradient != nil, "tensors %v, %v", value, gradient)
		other, none, err := r.ExportDLPack(state)
		w.ok(err)
		w.expect(other != nil && none == nil, "tensors %v, %v of an untrained parameter", other, none)
		w.failing(r.BindDLPack(p, value, nil), ErrInvalidArgument) // no gradient: both stay ours
		w.ok(r.BindDLPack(p, value, gradient))
		w.ok(r.BindDLPack(state, other, nil))
		w.ok(w.SetOptimizer("sgd", "lr=1"))
		w.ok(w.Start(context.Background()))
		buffers.Gradient[1] = 3
		w.step(1)
		w.expect(equal(buffers.Value, []float32{0, -3}), "values are %v", buffers.Value)
	})
}
