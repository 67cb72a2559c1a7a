// Package dsgd trains one model in many processes, whatever language each of them is written in.
//
// A worker is a process that called [Run] or [Init]. It computes gradients; [Session.Step] turns the gradients of all workers into
// new parameter values that are the same everywhere. The shortest trainer, errors left out:
//
//	dsgd.Run(ctx, dsgd.NewConfig(), func(session *dsgd.Session) error { // DSGD_* variables are read
//		weight, _ := session.AddParameter("dense.weight", dsgd.Float32, []int{64, 10})
//		replica, _ := session.AddReplica("cpu")
//		buffers, _ := dsgd.Alloc[float32](replica, weight)
//		session.SetOptimizer("sgd", "lr=0.1 momentum=0.9")
//		session.Start(ctx) // all workers hold rank 0's values
//		for batch := range batches {
//			computeGradient(buffers.Value, buffers.Gradient, batch)
//			session.Step(ctx, float64(batch.Size)) // the mean weighs this worker by its samples
//		}
//		return nil // an error would fail this worker
//	})
//
// The C header dsgd.h says exactly what each call does; the comments here say what is particular to Go.
//
// Nothing is published under the path dsgd.io/dsgd. A program's go.mod names a folder that holds the module:
//
//	require dsgd.io/dsgd v1.0.0
//	replace dsgd.io/dsgd => ../dsgd/bindings/go
//
// # Errors
//
// Errors of the library are *[Error]; errors.Is(err, [ErrTimeout]) and its like tell them apart.
//
// # Waiting
//
// Operations that may take long take a context. When it ends first, the call returns the context's error; the operation
// itself goes on until its own deadline, and its buffers stay pinned and must be left alone. Use [Session.StepBegin] or an
// ...Async function to keep a handle on such an operation.
//
// # Memory
//
// Slices given to dsgd are used in place. They are pinned until the operation ends, or, when bound to a parameter, until
// others are bound or the session closes. Slices from [Alloc] are memory of the library: they are valid as long as their
// [Buffers] or the [Session] is reachable.
//
// # Threads
//
// All methods may be called from any goroutine. Those that dsgd.h marks "one thread at a time" (registering, binding,
// starting and stepping) must not overlap on one session.
package dsgd

import "dsgd.io/dsgd/internal/raw"

// Version of the library in use, such as "1.0.0".
func Version() string { return raw.Dsgd_version_string() }

// Capability tells whether the library in use has an optional part: "cuda" for replicas on GPUs. It is false for names that
// the library does not know.
func Capability(name string) bool { return raw.Dsgd_capability(name) != 0 }

// VersionNumber of the library in use: major*10000 + minor*100 + patch.
func VersionNumber() int { return int(raw.Dsgd_version()) }
