package dsgd

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"

	"dsgd.io/dsgd/internal/raw"
)

// Error makes a status an error, so that errors.Is can look for it.
func (v Status) Error() string { return v.String() }

// Error is what went wrong, where, and what to do.
type Error struct {
	Status    Status
	Rank      int    // the worker concerned, -1 if none
	Host      string // "" if none
	Operation string // "step 17", "barrier (call 3 of the session)", "" if none
	Parameter string // parameter or key concerned, "" if none
	Message   string // a whole sentence
}

func (e *Error) Error() string {
	if e.Message == "" {
		return "dsgd: " + e.Status.String()
	}
	return "dsgd: " + e.Message
}

// Unwrap gives the status, so that errors.Is(err, ErrTimeout) holds.
func (e *Error) Unwrap() error { return e.Status }

// call makes a C call and turns its outcome into an error. keep stays alive during the call. texts are names and values of
// strings that the call takes.
func call(keep any, c func(err *uintptr) int, texts ...string) error {
	if err := checkTexts(texts...); err != nil {
		return err
	}
	var handle uintptr // filled by the thread that makes the call, read from wherever the goroutine has moved
	status := c(&handle)
	runtime.KeepAlive(keep)
	if status >= 0 {
		return nil
	}
	if handle == 0 { // the library could not even make an error
		return &Error{Status: Status(status), Rank: -1}
	}
	defer raw.Dsgd_error_free(handle)
	return &Error{
		Status:    Status(status),
		Rank:      raw.Dsgd_error_rank(handle),
		Host:      raw.Dsgd_error_host(handle),
		Operation: inGo(raw.Dsgd_error_operation(handle)),
		Parameter: raw.Dsgd_error_parameter(handle),
		Message:   inGo(raw.Dsgd_error_message(handle)),
	}
}

func invalid(message string) error {
	return &Error{Status: ErrInvalidArgument, Rank: -1, Message: message}
}

// checkTexts refuses strings that C would cut short at their first NUL byte. Each follows its name.
func checkTexts(texts ...string) error {
	for i := 1; i < len(texts); i += 2 {
		if at := strings.IndexByte(texts[i], 0); at >= 0 {
			return invalid(texts[i-1] + " holds a NUL byte; the text before it is '" + texts[i][:at] + "': remove the byte")
		}
	}
	return nil
}

// A value in a message is quoted, and stays as it is.
var cName = regexp.MustCompile(`(^|[^\w'/.-])((?:dsgd|DSGD)_\w+)`)

// inGo is a text of the library with Go's names in the place of C's.
func inGo(text string) string {
	if !strings.Contains(text, "dsgd_") && !strings.Contains(text, "DSGD_") {
		return text
	}
	return cName.ReplaceAllStringFunc(text, func(match string) string {
		parts := cName.FindStringSubmatch(match)
		if name, known := cNames[parts[2]]; known {
			return parts[1] + name
		}
		return match
	})
}

// unknown is the text of a number that a newer library has given.
func unknown(what string, number int) string { return fmt.Sprintf("unknown %s %d", what, number) }
