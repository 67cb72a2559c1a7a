package dsgd

import (
	"fmt"
	"strings"
	"testing"

	"dsgd.io/dsgd/internal/raw"
)

// The tables are made from the header; the library has names and sizes of its own.
func TestTablesAreThoseOfTheLibrary(t *testing.T) {
	known := 0
	for status := Status(-1); status > -100; status-- {
		name := raw.Dsgd_status_name(int(status))
		if name == "DSGD_ERR_UNKNOWN" {
			if want := fmt.Sprintf("unknown Status %d", int(status)); status.String() != want {
				t.Errorf("status %d is %q, want %q", int(status), status, want)
			}
			continue
		}
		known++
		word := strings.ReplaceAll(strings.TrimPrefix(name, "DSGD_ERR_"), "_", "")
		if !strings.EqualFold(status.String(), "Err"+word) {
			t.Errorf("status %d is %q, the library's is %q", int(status), status, name)
		}
	}
	if known < 22 {
		t.Errorf("the library has only %d statuses", known)
	}
	for dtype := DType(0); dtype < 100; dtype++ {
		if size := int(raw.Dsgd_dtype_size(int(dtype))); dtype.Size() != size {
			t.Errorf("%v has %d bytes, the library says %d", dtype, dtype.Size(), size)
		}
	}
}

func TestDTypes(t *testing.T) {
	for dtype, size := range map[DType]int{Float32: 4, Float64: 8, Int32: 4, Int64: 8, Uint8: 1, Int8: 1, Uint64: 8, DType(77): 0} {
		if dtype.Size() != size {
			t.Errorf("%v has %d bytes, want %d", dtype, dtype.Size(), size)
		}
	}
	if got := []DType{dtypeOf[float32](), dtypeOf[float64](), dtypeOf[int32](), dtypeOf[int64](), dtypeOf[uint8]()}; got[0] !=
		Float32 || got[1] != Float64 || got[2] != Int32 || got[3] != Int64 || got[4] != Uint8 {
		t.Errorf("dtypes of the Go types are %v", got)
	}
	for dtype, name := range map[DType]string{Float32: "float32", Float64: "float64", Int32: "int32", Int64: "int64",
		Uint8: "uint8", Int8: "int8", Uint64: "uint64", 99: "unknown DType 99"} {
		if dtype.String() != name {
			t.Errorf("dtype %d is called %q", int(dtype), dtype)
		}
	}
}

func TestVersion(t *testing.T) {
	if want := int(raw.DSGD_VERSION_MAJOR)*10000 + int(raw.DSGD_VERSION_MINOR)*100 + int(raw.DSGD_VERSION_PATCH); VersionNumber() != want {
		t.Errorf("the library is %d, the header %d", VersionNumber(), want)
	}
	if Capability("warp drive") {
		t.Error("an unknown capability is there")
	}
	if strings.Count(Version(), ".") != 2 {
		t.Errorf("version %q", Version())
	}
}
