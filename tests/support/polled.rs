//! Futures of grants without their types, polled by hand.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tidegate::{Grant, Refusal};

pub(crate) type Future = Pin<Box<dyn std::future::Future<Output = Result<Grant, Refusal>>>>;

pub(crate) fn poll(future: &mut Future) -> Poll<Result<Grant, Refusal>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
