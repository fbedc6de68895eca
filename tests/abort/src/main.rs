//! Waits that outlive their runtime, in a program in which a panic ends the process:
//!
//! `cargo run --profile abort -p tidegate-abort`
//!
//! Any panic, even one that a library would catch, ends it before the last line is printed.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::{Rate, RateLimiter, Request, TokenBucket};
use tokio::runtime::{Builder, Runtime};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Polls a wait once in a runtime, ends the runtime, and continues to use the limiter in another
/// runtime and in none.
fn outlive(runtime: Runtime, other: Runtime) {
    let limiter = RateLimiter::new(TokenBucket::new(Rate::per_hour(1), 1));
    limiter.try_acquire().expect("the first");
    let mut context = Context::from_waker(Waker::noop());
    let mut wait = pin!(limiter.acquire());
    // One wait that is polled in a task, and one that outlives the task.
    let non_blocking = limiter.clone();
    runtime.spawn(async move { non_blocking.acquire().await });
    runtime.block_on(async {
        tokio::task::yield_now().await;
        assert!(wait.as_mut().poll(&mut context).is_pending());
    });
    let handle = runtime.handle().clone();
    drop(runtime);
    // In the context of the runtime that has ended.
    let entered = handle.enter();
    assert!(wait.as_mut().poll(&mut context).is_pending());
    assert!(pin!(limiter.acquire()).poll(&mut context).is_pending());
    limiter.set_rate(Rate::per_hour(2));
    drop(entered);
    limiter.refund(0);
    assert!(limiter.try_acquire().is_err());
    assert!(limiter.blocking_acquire_many(Request::permits(1).within(Duration::ZERO)).is_err());
    // A running runtime serves it.
    other.block_on(async {
        assert!(wait.as_mut().poll(&mut context).is_pending());
        limiter.set_rate(Rate::per_hour(3));
        limiter.refund(1);
        assert!(wait.as_mut().poll(&mut context).is_ready());
    });
}

fn main() {
    for _ in 0..20 {
        outlive(current_thread(), current_thread());
        outlive(multi_thread(), current_thread());
        outlive(current_thread(), multi_thread());
    }
    println!("every wait outlived its event loop");
}
