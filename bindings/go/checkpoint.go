package dsgd

import (
	"context"

	"dsgd.io/dsgd/internal/raw"
)

// SaveCheckpoint saves the model, the optimizer's state, the step and the data shards in folder ("": the configured
// checkpoint_dir), on a file system that all workers share. All workers call it between the same steps. When the context
// ends first, the checkpoint is still written. Its copy of the model may then be made only when an earlier save has ended;
// a step before fails with [ErrState].
func (s *Session) SaveCheckpoint(ctx context.Context, folder string) error {
	return saveCheckpoint(s, folder).run(ctx)
}

// SaveCheckpointAsync begins a [Session.SaveCheckpoint]: the model may change as soon as it returns, and files are written
// beside the next steps.
func (s *Session) SaveCheckpointAsync(folder string) (*Op, error) {
	return saveCheckpoint(s, folder).start()
}

func saveCheckpoint(s *Session, folder string) task {
	return task{caller: s, blocks: true, fault: checkTexts("folder", folder), begin: func(op, err *uintptr) int {
		return raw.Dsgd_checkpoint_save(s.pointer(), folder, nil, op, err)
	}}
}

// LoadCheckpoint loads the newest checkpoint of folder, or the checkpoint folder/step-NNNNNNNNNN that is given itself, after
// Start; [ErrNotFound] says that there is none. After [ErrViewChanged], call it again, on all workers. [SessionInfo].Steps then
// counts its steps, and the shards that were made before go on where it was taken. The number of workers and the strategy may
// be others.
func (s *Session) LoadCheckpoint(ctx context.Context, folder string) error {
	return task{caller: s, fault: checkTexts("folder", folder), begin: func(op, err *uintptr) int {
		return raw.Dsgd_checkpoint_load(s.pointer(), folder, nil, op, err)
	}}.run(ctx)
}
