package dsgd

import (
	"runtime"
	"strings"

	"dsgd.io/dsgd/internal/raw"
)

// Code says what kind of error occurred. Codes are errors themselves, for errors.Is. A newer library may return codes that
// are not listed here.
type Code int32

// The codes of dsgd.h.
const (
	ErrInvalidArgument Code = -1  // an argument, key, option or size is wrong
	ErrState           Code = -2  // right call, wrong moment: step before start, gradient ready twice
	ErrClosed          Code = -3  // the session was closed
	ErrForked          Code = -4  // called in a forked child
	ErrTimeout         Code = -5  // the operation's deadline passed; the message names who is missing
	ErrWaitTimeout     Code = -6  // this wait ran out; the operation goes on
	ErrAborted         Code = -7  // a worker called Abort; the message says who and why
	ErrWorkerLost      Code = -8  // a worker or the head died, stopped, left or cannot be reached
	ErrMismatch        Code = -9  // workers disagree: names, shapes, dtypes, order of operations, settings
	ErrNotFound        Code = -10 // no such name, file or object
	ErrExists          Code = -11 // the name or the worker id is taken
	ErrUnauthorized    Code = -12 // wrong token or job name
	ErrUnreachable     Code = -13 // an address cannot be resolved or connected to
	ErrAddressInUse    Code = -14 // the address to listen on is taken
	ErrNoMemory        Code = -15
	ErrLimit           Code = -16 // a limit of the system or of dsgd is reached
	ErrIO              Code = -17 // reading or writing a file failed
	ErrUnsupported     Code = -18 // known, but not in this build or not for these arguments
	ErrTorn            Code = -19 // an earlier step failed half-way
	ErrInternal        Code = -20 // a defect of dsgd; please report the message
	ErrDiverged        Code = -21 // workers or replicas hold different models
	ErrCorrupted       Code = -22 // received bytes failed their checksum
)

// String is the name of the code in C, such as "DSGD_ERR_TIMEOUT".
func (c Code) String() string { return raw.Dsgd_status_name(int(c)) }

// Error makes a code an error, so that errors.Is can look for it.
func (c Code) Error() string { return c.String() }

// Error is what went wrong, where, and what to do.
type Error struct {
	Code      Code
	Rank      int    // the worker concerned, -1 if none
	Host      string // "" if none
	Operation string // "step 17", "barrier (call 3 of the session)", "" if none
	Parameter string // parameter or key concerned, "" if none
	Message   string // a whole sentence
}

func (e *Error) Error() string {
	if e.Message == "" {
		return "dsgd: " + e.Code.String()
	}
	return "dsgd: " + e.Message
}

// Unwrap gives the code, so that errors.Is(err, ErrTimeout) holds.
func (e *Error) Unwrap() error { return e.Code }

// failure is where a C call puts its error. It is filled within the call, by the thread that made it, and read afterwards
// from wherever the goroutine has moved.
type failure struct{ handle uintptr }

// check turns the outcome of a C call into an error. keep is what had to stay alive during the call.
func (f *failure) check(status int, keep any) error {
	runtime.KeepAlive(keep)
	if status >= 0 {
		return nil
	}
	if f.handle == 0 { // the library could not even make an error
		return &Error{Code: Code(status), Rank: -1}
	}
	defer raw.Dsgd_error_free(f.handle)
	return &Error{
		Code:      Code(status),
		Rank:      raw.Dsgd_error_rank(f.handle),
		Host:      raw.Dsgd_error_host(f.handle),
		Operation: raw.Dsgd_error_operation(f.handle),
		Parameter: raw.Dsgd_error_parameter(f.handle),
		Message:   raw.Dsgd_error_message(f.handle),
	}
}

func invalid(message string) error {
	return &Error{Code: ErrInvalidArgument, Rank: -1, Message: message}
}

// checkText refuses strings that C would cut short at their first NUL byte.
func checkText(what, text string) error {
	if at := strings.IndexByte(text, 0); at >= 0 {
		return invalid(what + " holds a NUL byte; the text before it is '" + text[:at] + "': remove the byte")
	}
	return nil
}
