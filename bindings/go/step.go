package dsgd

import (
	"context"

	"dsgd.io/dsgd/internal/raw"
)

// StepResult is the result of a step.
type StepResult struct {
	Step         int64   // index of this step, from 0
	View         int64   // view in which it completed
	Size         int     // workers in that view
	Applied      bool    // values were updated; false: all weights were 0, or Skipped
	AllDone      bool    // no data is left: all remaining workers gave weight 0
	Stop         bool    // some worker called RequestStop before this step
	Weight       float64 // sum of all contribution weights
	GradientNorm float64 // L2 norm of the mean gradient before clipping; NaN if all weights were 0, if `nonfinite` skipped the step, or without `gradient_norm`, `loss_scale` and clip_norm

	NonFinite     int64 // elements of gradients with NaN or infinity, over all workers; 0 if the key `nonfinite` is off
	NonFiniteRank int   // lowest rank that has some; -1: none
	Skipped       bool  // no update, since gradients, or with `loss_scale` their mean, were not finite
}

func stepResult(r *raw.StepResult) StepResult {
	return StepResult{Step: r.Step, View: r.View, Size: int(r.Size), Applied: r.Applied != 0, AllDone: r.AllDone != 0,
		Stop: r.Stop != 0, Weight: r.Weight, GradientNorm: r.GradientNorm,
		NonFinite: r.Nonfinite, NonFiniteRank: int(r.NonfiniteRank), Skipped: r.Skipped != 0}
}

// Step is one synchronous step: the mean of all replicas' gradients over all workers updates every replica. weight is this
// worker's contribution weight, usually its number of samples; 0 when it has no data left: go on calling until AllDone.
// If the context ends first, the step goes on, and Step returns the context's error. Then close the session; to be able to
// wait again, use StepBegin instead.
func (s *Session) Step(ctx context.Context, weight float64) (StepResult, error) {
	if cancelled(ctx) != nil {
		op, err := s.StepBegin(weight)
		if err != nil {
			return StepResult{}, err
		}
		_ = s.StepFlush() // it fails only if the step has ended, and Wait tells how
		if err := op.Wait(ctx); err != nil {
			return StepResult{}, err
		}
		return op.StepResult()
	}
	result := raw.NewStepResult()
	if err := call(s, func(err *uintptr) int { return raw.Dsgd_step(s.pointer(), weight, &result, err) }); err != nil {
		return StepResult{}, err
	}
	return stepResult(&result), nil
}

// StepBegin begins a step that overlaps the backward pass: mark gradients with [Replica.GradientReady] as they are ready,
// then wait for the operation. The step ends when every gradient is marked, ready or absent; [Session.StepFlush] marks the
// rest. Waiting marks nothing. It never blocks.
func (s *Session) StepBegin(weight float64) (*Op, error) {
	if s.pointer() == 0 {
		return nil, notASession()
	}
	return s.core.start(s, stepOp, nil, func(op, err *uintptr) int {
		return raw.Dsgd_step_begin(s.pointer(), weight, nil, op, err)
	})
}

// StepFlush marks all gradients that are not marked yet as ready. It never blocks.
func (s *Session) StepFlush() error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_step_flush(s.pointer(), err) })
}

// RequestStop asks all workers to stop: every one sees Stop in the result of the same step, the next that this worker
// begins.
func (s *Session) RequestStop() error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_stop_request(s.pointer(), err) })
}
