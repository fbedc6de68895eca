//! Waits for messages that many tasks receive, of which one may have a waker that panics.
//!
//! A notifier of tokio wakes all tasks in one call. If a waker panics there, the tasks behind it
//! are never woken, and the panic reaches the sender of the message. So each task waits with a
//! [`Guarded`] waker, which catches its panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

/// A waker of a user. It is `None` only while it is dropped.
struct Guarded(Option<Waker>);

impl Wake for Guarded {
    fn wake(self: Arc<Guarded>) {
        _ = catch_unwind(AssertUnwindSafe(|| self.0.iter().for_each(Waker::wake_by_ref)));
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        _ = catch_unwind(AssertUnwindSafe(|| drop(self.0.take())));
    }
}

/// Waits for a message.
pub(crate) async fn guarded<F: Future>(message: F) -> F::Output {
    let mut message = pin!(message);
    std::future::poll_fn(|context| {
        let waker = Waker::from(Arc::new(Guarded(Some(context.waker().clone()))));
        message.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}
