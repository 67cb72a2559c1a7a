package dsgd

import (
	"strings"
	"testing"

	"dsgd.io/dsgd/internal/raw"
)

// The constants are written out in Go; the library's own must be the same.
func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	for _, c := range []struct {
		name      string
		goes, has int
	}{
		{"ErrInvalidArgument", int(ErrInvalidArgument), int(raw.DSGD_ERR_INVALID_ARGUMENT)},
		{"ErrState", int(ErrState), int(raw.DSGD_ERR_STATE)},
		{"ErrClosed", int(ErrClosed), int(raw.DSGD_ERR_CLOSED)},
		{"ErrForked", int(ErrForked), int(raw.DSGD_ERR_FORKED)},
		{"ErrTimeout", int(ErrTimeout), int(raw.DSGD_ERR_TIMEOUT)},
		{"ErrWaitTimeout", int(ErrWaitTimeout), int(raw.DSGD_ERR_WAIT_TIMEOUT)},
		{"ErrAborted", int(ErrAborted), int(raw.DSGD_ERR_ABORTED)},
		{"ErrWorkerLost", int(ErrWorkerLost), int(raw.DSGD_ERR_WORKER_LOST)},
		{"ErrMismatch", int(ErrMismatch), int(raw.DSGD_ERR_MISMATCH)},
		{"ErrNotFound", int(ErrNotFound), int(raw.DSGD_ERR_NOT_FOUND)},
		{"ErrExists", int(ErrExists), int(raw.DSGD_ERR_EXISTS)},
		{"ErrUnauthorized", int(ErrUnauthorized), int(raw.DSGD_ERR_UNAUTHORIZED)},
		{"ErrUnreachable", int(ErrUnreachable), int(raw.DSGD_ERR_UNREACHABLE)},
		{"ErrAddressInUse", int(ErrAddressInUse), int(raw.DSGD_ERR_ADDRESS_IN_USE)},
		{"ErrNoMemory", int(ErrNoMemory), int(raw.DSGD_ERR_NO_MEMORY)},
		{"ErrLimit", int(ErrLimit), int(raw.DSGD_ERR_LIMIT)},
		{"ErrIO", int(ErrIO), int(raw.DSGD_ERR_IO)},
		{"ErrUnsupported", int(ErrUnsupported), int(raw.DSGD_ERR_UNSUPPORTED)},
		{"ErrTorn", int(ErrTorn), int(raw.DSGD_ERR_TORN)},
		{"ErrInternal", int(ErrInternal), int(raw.DSGD_ERR_INTERNAL)},
		{"ErrDiverged", int(ErrDiverged), int(raw.DSGD_ERR_DIVERGED)},
		{"ErrCorrupted", int(ErrCorrupted), int(raw.DSGD_ERR_CORRUPTED)},
		{"LogError", int(LogError), int(raw.DSGD_LOG_ERROR)},
		{"LogWarning", int(LogWarning), int(raw.DSGD_LOG_WARNING)},
		{"LogInfo", int(LogInfo), int(raw.DSGD_LOG_INFO)},
		{"LogDebug", int(LogDebug), int(raw.DSGD_LOG_DEBUG)},
		{"Float32", int(Float32), int(raw.DSGD_FLOAT32)},
		{"Float64", int(Float64), int(raw.DSGD_FLOAT64)},
		{"Int32", int(Int32), int(raw.DSGD_INT32)},
		{"Int64", int(Int64), int(raw.DSGD_INT64)},
		{"Uint8", int(Uint8), int(raw.DSGD_UINT8)},
		{"Untrained", int(Untrained), int(raw.DSGD_UNTRAINED)},
		{"Sum", int(Sum), int(raw.DSGD_SUM)},
		{"Min", int(Min), int(raw.DSGD_MIN)},
		{"Max", int(Max), int(raw.DSGD_MAX)},
		{"Prod", int(Prod), int(raw.DSGD_PROD)},
		{"Mean", int(Mean), int(raw.DSGD_MEAN)},
		{"Sequential", int(Sequential), int(raw.DSGD_SHARD_SEQUENTIAL)},
	} {
		if c.goes != c.has {
			t.Errorf("%s is %d, the header's is %d", c.name, c.goes, c.has)
		}
	}
}

func TestDTypes(t *testing.T) {
	for dtype, size := range map[DType]int{Float32: 4, Float64: 8, Int32: 4, Int64: 8, Uint8: 1, DType(77): 0} {
		if dtype.Size() != size {
			t.Errorf("%v has %d bytes, want %d", dtype, dtype.Size(), size)
		}
	}
	if got := []DType{dtypeOf[float32](), dtypeOf[float64](), dtypeOf[int32](), dtypeOf[int64](), dtypeOf[uint8]()}; got[0] !=
		Float32 || got[1] != Float64 || got[2] != Int32 || got[3] != Int64 || got[4] != Uint8 {
		t.Errorf("dtypes of the Go types are %v", got)
	}
	for dtype, name := range map[DType]string{Float32: "float32", Float64: "float64", Int32: "int32", Int64: "int64",
		Uint8: "uint8", 9: "unknown dtype"} {
		if dtype.String() != name {
			t.Errorf("dtype %d is called %q", int(dtype), dtype)
		}
	}
}

func TestVersion(t *testing.T) {
	if want := int(raw.DSGD_VERSION_MAJOR)*10000 + int(raw.DSGD_VERSION_MINOR)*100 + int(raw.DSGD_VERSION_PATCH); VersionNumber() != want {
		t.Errorf("the library is %d, the header %d", VersionNumber(), want)
	}
	if strings.Count(Version(), ".") != 2 {
		t.Errorf("version %q", Version())
	}
}
