package dsgd

import (
	"log/slog"
	"runtime"
	"sync"

	"dsgd.io/dsgd/internal/raw"
)

// Config says how to join a job: string keys with string values. A value comes from [Config.Set], else from the environment
// (key heartbeat_interval: DSGD_HEARTBEAT_INTERVAL), else from a file, else from the default. [ConfigKeys] lists the keys.
// One Config may serve several sessions.
type Config struct {
	mu     sync.RWMutex // joining reads: sessions of one Config may wait for each other
	handle uintptr
	log    LogFunc
}

// NewConfig is a configuration with what the environment holds at this moment.
func NewConfig() *Config {
	c := &Config{handle: raw.Dsgd_config_new()}
	runtime.SetFinalizer(c, func(c *Config) { raw.Dsgd_config_free(c.handle) })
	return c
}

// Set sets one key. An unknown key or a value out of range is an error that names the nearest key or the range.
func (c *Config) Set(key, value string) error {
	defer c.lock()()
	return call(c, func(err *uintptr) int { return raw.Dsgd_config_set(c.pointer(), key, value, err) },
		"configuration key", key, "value of configuration key '"+key+"'", value)
}

// Load reads "key = value" lines from a file. Nothing is set if one line fails.
func (c *Config) Load(path string) error {
	defer c.lock()()
	return call(c, func(err *uintptr) int { return raw.Dsgd_config_load(c.pointer(), path, err) }, "path", path)
}

// Get is the effective value of a key; false if there is no such key.
func (c *Config) Get(key string) (string, bool) {
	if c == nil || checkTexts("", key) != nil {
		return "", false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	defer runtime.KeepAlive(c)
	return raw.Dsgd_config_value(c.pointer(), key), raw.Dsgd_config_has(c.pointer(), key) != 0
}

// SetLog gives log records of sessions made from this configuration to a function; nil leaves them unread. The function
// is called on one goroutine per session. It must not call [Session.Close] on that session, which waits for it.
func (c *Config) SetLog(log LogFunc) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = log
}

// SetLogger gives log records of sessions made from this configuration to a logger; nil leaves them unread.
func (c *Config) SetLogger(logger *slog.Logger) {
	if logger == nil {
		c.SetLog(nil)
		return
	}
	c.SetLog(logTo(logger))
}

// use calls a function with the C configuration: NULL, which means environment and defaults, for a nil Config.
func (c *Config) use(call func(handle uintptr, log LogFunc) error) error {
	if c == nil {
		return call(0, nil)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	defer runtime.KeepAlive(c)
	if c.handle == 0 {
		return invalid("this Config was not made by NewConfig; call NewConfig, or pass nil for environment and defaults")
	}
	return call(c.handle, c.log)
}

func (c *Config) pointer() uintptr {
	if c == nil {
		return 0
	}
	return c.handle
}

func (c *Config) lock() (unlock func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	return c.mu.Unlock
}

// ConfigKey is one row of the table of configuration keys.
type ConfigKey struct {
	Name        string // "heartbeat_interval"
	Type        string // "string", "integer", "duration", "size", "switch", "choice"
	Default     string
	Range       string // "1..65536", "simple | ps | allreduce", ""
	Help        string // one or more sentences
	Environment string // "DSGD_HEARTBEAT_INTERVAL"
}

// ConfigKeys is the table of configuration keys, in alphabetical order.
func ConfigKeys() []ConfigKey {
	row := raw.NewDsgd_config_key()
	defer raw.DeleteDsgd_config_key(row)
	keys := make([]ConfigKey, 0, raw.Dsgd_config_key_count())
	for index := int64(0); index < raw.Dsgd_config_key_count(); index++ {
		if raw.Dsgd_config_key_at(index, row.Swigcptr(), nil) != 0 {
			break
		}
		keys = append(keys, ConfigKey{Name: row.GetName(), Type: row.GetXtype(), Default: row.GetDefault_value(),
			Range: row.GetXrange(), Help: row.GetHelp(), Environment: row.GetEnvironment()})
	}
	return keys
}
