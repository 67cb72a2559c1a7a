package dsgd

import (
	"errors"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

func TestConfigSetThenGet(t *testing.T) {
	config := NewConfig()
	if err := config.Set("num_workers", "3"); err != nil {
		t.Fatal(err)
	}
	if value, known := config.Get("num_workers"); value != "3" || !known {
		t.Errorf("num_workers is %q, %v", value, known)
	}
	if value, known := config.Get("no_such_key"); known {
		t.Errorf("no_such_key is known, as %q", value)
	}
	if value, known := config.Get("head"); value != "" || !known {
		t.Errorf("the default of head is %q, %v; want an empty value of a known key", value, known)
	}
}

func TestConfigReadsTheEnvironment(t *testing.T) {
	t.Setenv("DSGD_NUM_WORKERS", "7")
	if value, _ := NewConfig().Get("num_workers"); value != "7" {
		t.Errorf("num_workers is %q, want the environment's 7", value)
	}
}

func TestConfigRefusesUnknownKeysAndBadValues(t *testing.T) {
	config := NewConfig()
	for _, c := range []struct{ key, value, names string }{
		{"num_worker", "3", "num_workers"}, // the nearest key
		{"num_workers", "many", "many"},
		{"num_workers", "-1", "num_workers"},
		{"step_timeout", "10", "step_timeout"}, // no unit
		{"", "1", ""},
		{"num_workers\x00", "1", "NUL"},
		{"num_workers", "1\x002", "NUL"},
	} {
		err := config.Set(c.key, c.value)
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("Set(%q, %q) gave %v; want ErrInvalidArgument that names %q", c.key, c.value, err, c.names)
		}
	}
}

func TestConfigLoad(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := NewConfig()
	if err := config.Load(file("good", "# a comment\nnum_workers = 5\njob = digits\n")); err != nil {
		t.Fatal(err)
	}
	if value, _ := config.Get("num_workers"); value != "5" {
		t.Errorf("num_workers is %q", value)
	}
	if err := config.Load(file("bad", "num_workers = 6\nnum_wrokers = 7\n")); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a bad line gave %v", err)
	}
	if value, _ := config.Get("num_workers"); value != "5" {
		t.Errorf("num_workers is %q after a file with a bad line; nothing of it may be set", value)
	}
	if err := config.Load(filepath.Join(folder, "missing")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing file gave %v", err)
	}
	if err := config.Load("a\x00b"); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("a path with a NUL byte gave %v", err)
	}
}

func TestConfigKeysIsTheWholeTableInOrder(t *testing.T) {
	keys := ConfigKeys()
	names := make([]string, len(keys))
	config := NewConfig()
	for i, key := range keys {
		names[i] = key.Name
		if key.Type == "" || key.Help == "" || key.Environment != "DSGD_"+strings.ToUpper(key.Name) {
			t.Errorf("row %d: %+v", i, key)
		}
		if _, known := config.Get(key.Name); !known {
			t.Errorf("%s is in the table, but is no key", key.Name)
		}
	}
	if !sort.StringsAreSorted(names) {
		t.Errorf("keys are not in order: %v", names)
	}
	if i := sort.SearchStrings(names, "heartbeat_interval"); i == len(names) || names[i] != "heartbeat_interval" {
		t.Errorf("heartbeat_interval is not among %v", names)
	}
}

func TestConfigOfNobody(t *testing.T) {
	for name, config := range map[string]*Config{"nil": nil, "zero": {}} {
		if err := config.Set("num_workers", "1"); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: Set gave %v", name, err)
		}
		if err := config.Load("/dev/null"); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s: Load gave %v", name, err)
		}
		if value, known := config.Get("num_workers"); known {
			t.Errorf("%s: Get gave %q", name, value)
		}
		config.SetLog(func(LogRecord) {})
		config.SetLogger(nil)
	}
	if _, err := Init(&Config{}); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("Init gave %v", err)
	}
	if _, err := StartHead(&Config{}); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("StartHead gave %v", err)
	}
}
