//! Models the hand-over of a connection's future between its task and a thread that sends, while a
//! reply arrives.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool as Flag, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::{Driver, Sending};

/// The waker of `futures-util`, by a lock.
pub(super) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(super) fn new() -> AtomicWaker {
        AtomicWaker(Mutex::new(None))
    }

    pub(super) fn register(&self, waker: &Waker) {
        *self.0.lock().expect("no panic") = Some(waker.clone());
    }

    pub(super) fn wake(&self) {
        let waker = self.0.lock().expect("no panic").take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What a connection's future works on.
struct Work {
    /// Calls that were added, and replies that arrived.
    there: AtomicUsize,
    /// Of them those that the future saw.
    seen: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Work {
    /// Adds a call, or has a reply arrive, and wakes the future.
    fn add(&self) {
        self.there.fetch_add(1, Ordering::Release);
        let waker = self.waker.lock().expect("no panic").take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of a connection, which sees all there is.
struct Connection(Arc<Work>);

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Connection>, context: &mut Context<'_>) -> Poll<()> {
        *self.0.waker.lock().expect("no panic") = Some(context.waker().clone());
        self.0.seen.store(self.0.there.load(Ordering::Acquire), Ordering::Relaxed);
        Poll::Pending
    }
}

/// Whether the task is to run. A runtime does not lose this, so it is not modelled.
struct Scheduled(Flag);

impl Wake for Scheduled {
    fn wake(self: Arc<Scheduled>) {
        self.0.store(true, SeqCst);
    }
}

type Model = Driver<Connection>;

/// A task that runs whenever it is woken, a thread that sends a call, and a reply that arrives. In
/// the end the future has seen both.
fn both_are_seen(
    poll: impl Fn(&Model, &Context<'_>) + Copy + Send + Sync + 'static,
    send: impl Fn(&Model, &Work) + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let (there, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = Arc::new(Work { there, seen, waker: Mutex::new(None) });
        let driver = Arc::new(Driver::new(Connection(work.clone())));
        // A task runs once when it is spawned.
        let scheduled = Arc::new(Scheduled(Flag::new(true)));
        let run = move |driver: &Model, scheduled: &Arc<Scheduled>| {
            while scheduled.0.swap(false, SeqCst) {
                let waker = Waker::from(scheduled.clone());
                poll(driver, &Context::from_waker(&waker));
            }
        };
        let task = thread::spawn({
            let (driver, scheduled) = (driver.clone(), scheduled.clone());
            move || run(&driver, &scheduled)
        });
        let sender = thread::spawn({
            let (driver, work) = (driver.clone(), work.clone());
            move || send(&driver, &work)
        });
        work.add();
        task.join().expect("no panic");
        sender.join().expect("no panic");
        run(&driver, &scheduled);
        assert_eq!(work.seen.load(Ordering::Relaxed), 2, "the task sleeps");
    });
}

/// As a link does: a call that is not sent here is added by the thread of the store, and wakes the
/// task.
fn send(driver: &Model, work: &Work) {
    if driver.send(|| work.add()).is_none() {
        work.add();
    }
}

fn poll(driver: &Model, context: &Context<'_>) {
    assert!(driver.poll(context).is_pending());
}

#[test]
fn no_wake_up_is_lost() {
    both_are_seen(poll, send);
}

/// The broken twin: a thread adds its call unheard, and leaves the future to the task.
#[test]
#[should_panic(expected = "the task sleeps")]
fn broken_a_call_is_added_without_a_poll() {
    both_are_seen(poll, |_, work| {
        let _sending = Sending::begin();
        work.add();
    });
}

/// The broken twin: the task leaves its waker when it has polled.
#[test]
#[should_panic(expected = "the task sleeps")]
fn broken_the_task_leaves_its_waker_after_the_poll() {
    let late = |driver: &Model, context: &Context<'_>| {
        assert!(driver.poll_future(&mut driver.lock()).is_pending());
        driver.task.0.register(context.waker());
    };
    both_are_seen(late, send);
}
