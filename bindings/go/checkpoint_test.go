package dsgd

import (
	"errors"
	"testing"
)

func TestCheckpointsAreSavedAndLoaded(t *testing.T) {
	folder := t.TempDir()
	job(t, 2, nil, func(w *worker) {
		_, _, value, gradient := w.model("p", 1, 1)
		shard, err := w.NewShard(100, 1)
		w.ok(err)
		w.ok(shard.SetEpoch(3))
		indices := make([]int64, 10)
		_, err = shard.Next(indices)
		w.ok(err)
		gradient[0] = 1
		w.step(1)
		saved := value[0]
		op, err := w.SaveCheckpointAsync(folder)
		w.ok(err)
		w.step(1)
		w.ok(op.Wait(background))
		w.expect(value[0] != saved, "the second step has changed nothing")
		_, err = shard.Next(indices)
		w.ok(err)
		w.ok(w.LoadCheckpoint(background, folder))
		info, err := w.Info()
		w.ok(err)
		w.expect(value[0] == saved && info.Steps == 1, "value %v after %d steps", value[0], info.Steps)
		w.expect(shard.Epoch() == 3 && shard.Position() == 20, "epoch %d, position %d", shard.Epoch(), shard.Position())
		w.step(1)
		w.ok(w.SaveCheckpoint(background, folder))
	})
}

func TestAFolderWithoutACheckpointIsNotFound(t *testing.T) {
	folder := t.TempDir()
	job(t, 1, nil, func(w *worker) {
		w.model("p", 1, 1)
		err := w.LoadCheckpoint(background, folder)
		w.expect(errors.Is(err, ErrNotFound), "%v", err)
		w.failing(w.SaveCheckpoint(background, ""), ErrInvalidArgument)
	})
}
