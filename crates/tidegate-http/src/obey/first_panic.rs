//! [`FirstPanic`]: carries out a response although user code panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of user code: of a waker, an observer, a clock or a function of the options. It
/// resumes when the whole response is carried out.
#[derive(Default)]
pub(super) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Runs user code. Returns `None` if it panics.
    pub(super) fn catch<T>(&mut self, user_code: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(user_code)) {
            Ok(result) => return Some(result),
            Err(panic) if self.0.is_none() => self.0 = Some(panic),
            // Dropping the payload is user code, which may panic again.
            Err(panic) => std::mem::forget(panic),
        }
        None
    }

    /// Resumes the panic, if there is one.
    pub(super) fn resume(self) {
        if let Some(panic) = self.0 {
            resume_unwind(panic);
        }
    }
}
