//! The event loop of a task, and sleeps with its timer. The event loop is a tokio runtime, or
//! outside of any runtime, the timer thread of all limiters.

use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "tokio")]
use tokio::runtime::{Handle, Id};

use crate::clock::thread::ThreadSleep;
#[cfg(feature = "tokio")]
use crate::clock::tokio::TokioSleep;
use crate::clock::{Clock, Sleep};
use crate::time::Nanos;

/// Identifies the event loop of a task: its tokio runtime, or everywhere else the timer thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLoop {
    /// `None` is the timer thread.
    #[cfg(feature = "tokio")]
    runtime: Option<Id>,
}

impl EventLoop {
    /// Returns the event loop of the calling task.
    pub(super) fn current() -> EventLoop {
        #[cfg(feature = "tokio")]
        return EventLoop::of(Handle::try_current().ok().as_ref());
        #[cfg(not(feature = "tokio"))]
        EventLoop {}
    }

    /// Returns the event loop of a tokio runtime, or of the timer thread.
    #[cfg(feature = "tokio")]
    pub(super) fn of(runtime: Option<&Handle>) -> EventLoop {
        EventLoop { runtime: runtime.map(Handle::id) }
    }
}

/// The [`Sleep`] of clocks that wait with the timer of the caller's event loop.
#[derive(Debug)]
pub struct EventLoopSleep<C>(Inner<C>);

#[derive(Debug)]
enum Inner<C> {
    #[cfg(feature = "tokio")]
    Tokio(TokioSleep<C>),
    Thread(ThreadSleep<C>),
}

impl<C: Clock> EventLoopSleep<C> {
    /// Creates a sleep until `clock` reads `at`, in the event loop of the calling task.
    pub(super) fn new(clock: C, at: Nanos) -> EventLoopSleep<C> {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = Handle::try_current() {
            return EventLoopSleep::by_tokio(&runtime, clock, at);
        }
        EventLoopSleep::by_thread(clock, at)
    }

    #[cfg(feature = "tokio")]
    pub(super) fn by_tokio(runtime: &Handle, clock: C, at: Nanos) -> EventLoopSleep<C> {
        EventLoopSleep(Inner::Tokio(TokioSleep::new(runtime, clock, at)))
    }

    pub(super) fn by_thread(clock: C, at: Nanos) -> EventLoopSleep<C> {
        EventLoopSleep(Inner::Thread(ThreadSleep::new(clock, at)))
    }
}

impl<C: Clock + Unpin> Future for EventLoopSleep<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.get_mut().0 {
            #[cfg(feature = "tokio")]
            Inner::Tokio(sleep) => Pin::new(sleep).poll(context),
            Inner::Thread(sleep) => Pin::new(sleep).poll(context),
        }
    }
}

impl<C: Clock + Unpin> Sleep for EventLoopSleep<C> {
    fn reset(self: Pin<&mut Self>, at: Nanos) {
        match &mut self.get_mut().0 {
            #[cfg(feature = "tokio")]
            Inner::Tokio(sleep) => Pin::new(sleep).reset(at),
            Inner::Thread(sleep) => Pin::new(sleep).reset(at),
        }
    }

    fn is_gone(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "tokio")]
            Inner::Tokio(sleep) => sleep.is_gone(),
            Inner::Thread(sleep) => sleep.is_gone(),
        }
    }
}
