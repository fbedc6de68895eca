use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::Wake;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::clock::ManualClock;

/// How long a test waits for a notification, in real time, before it fails.
const MINUTE: Duration = Duration::from_secs(60);

/// Sends its number when it is woken.
struct SendOnWake(Sender<u64>, u64);

impl Wake for SendOnWake {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(self.1);
    }
}

fn sending_waker(number: u64) -> (Waker, Receiver<u64>) {
    let (sender, woken) = channel();
    (Waker::from(Arc::new(SendOnWake(sender, number))), woken)
}

/// A timer with a thread of its own.
fn timer(start: fn(&'static AlarmThread) -> io::Result<()>) -> &'static AlarmThread {
    Box::leak(Box::new(AlarmThread::new(start)))
}

fn no_thread(_: &'static AlarmThread) -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

/// Creates a sleep of this many milliseconds, by a clock that stands still. The sleep wakes its
/// task this long after it is polled, and is not ready.
fn sleep(timer: &'static AlarmThread, after: u64) -> Pin<Box<ThreadSleep<ManualClock>>> {
    Box::pin(ThreadSleep::by(timer, ManualClock::new(), ms(after)))
}

fn is_pending<C: Clock + Unpin>(sleep: &mut Pin<Box<ThreadSleep<C>>>, waker: &Waker) -> bool {
    sleep.as_mut().poll(&mut Context::from_waker(waker)).is_pending()
}

fn left<T>(timer: &'static AlarmThread, look: impl FnOnce(&mut Queue) -> T) -> T {
    look(&mut timer.lock().queue)
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u64),
    /// The sleep with this number, modulo the number of sleeps so far.
    Remove(usize),
    WakeDue(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let at = prop_oneof![0u64..20, Just(u64::MAX)];
    vec(
        prop_oneof![
            3 => at.clone().prop_map(Act::Insert),
            2 => any::<usize>().prop_map(Act::Remove),
            2 => at.prop_map(Act::WakeDue),
        ],
        0..60,
    )
}

proptest! {
    /// The model: all sleeps that are left, in order of arrival. The next sleep to wake is the
    /// first of the earliest.
    #[test]
    fn sleeps_fire_in_order_of_time_and_then_of_arrival(acts in acts()) {
        let (mut queue, mut keys) = (Queue::default(), Vec::new());
        let mut model: BTreeMap<usize, u64> = BTreeMap::new();
        let (sender, woken) = channel();
        for act in acts {
            match act {
                Act::Insert(at) => {
                    let number = keys.len();
                    let waker = Waker::from(Arc::new(SendOnWake(sender.clone(), number as u64)));
                    keys.push(queue.insert(Nanos::new(at), waker));
                    model.insert(number, at);
                }
                Act::Remove(number) if !keys.is_empty() => {
                    let number = number % keys.len();
                    prop_assert_eq!(queue.remove(keys[number]).is_some(), model.remove(&number).is_some());
                }
                Act::Remove(_) => {}
                Act::WakeDue(now) => {
                    let earliest = model.iter().map(|(number, at)| (*at, *number)).min();
                    let due = earliest.filter(|(at, _)| *at <= now).map(|(_, number)| number);
                    queue.pop_due(Nanos::new(now)).into_iter().for_each(|(_, waker)| waker.wake());
                    prop_assert_eq!(woken.try_recv().ok(), due.map(|number| number as u64));
                    due.map(|number| model.remove(&number));
                }
            }
            prop_assert_eq!(queue.first().map(Nanos::as_u64), model.values().min().copied());
        }
    }
}

#[test]
fn a_sleep_fires_and_is_ready_then() {
    let (waker, woken) = sending_waker(7);
    let mut sleep = Box::pin(ThreadSleep::by(&TIMER, crate::SystemClock::new(), ms(2)));
    if is_pending(&mut sleep, &waker) {
        assert_eq!(woken.recv_timeout(MINUTE), Ok(7));
    }
    assert!(!is_pending(&mut sleep, &waker), "it rang at its time");
    assert!(sleep.clock.now() >= ms(2));
}

#[test]
fn a_sleep_that_is_due_or_past_is_ready_without_the_thread() {
    let timer = timer(no_thread);
    let clock = ManualClock::starting_at(ms(5));
    for at in [Nanos::ZERO, ms(4), ms(5)] {
        assert!(!is_pending(&mut Box::pin(ThreadSleep::by(timer, clock.clone(), at)), Waker::noop()));
    }
    assert!(timer.lock().started_in.is_none());
}

#[test]
fn a_sleep_without_an_end_does_not_fire_and_leaves_no_trace() {
    let timer = timer(start_thread);
    let (waker, woken) = sending_waker(0);
    let mut never = Box::pin(ThreadSleep::by(timer, ManualClock::new(), Nanos::MAX));
    assert!(is_pending(&mut never, &waker));
    let (other, rang) = sending_waker(1);
    let mut dropped = sleep(timer, 60_000);
    assert!(is_pending(&mut dropped, &other));
    drop((dropped, other));
    assert_eq!(rang.recv_timeout(MINUTE), Err(RecvTimeoutError::Disconnected), "the waker is dropped, too");
    let mut soon = sleep(timer, 1);
    let (other, rang) = sending_waker(2);
    assert!(is_pending(&mut soon, &other));
    assert_eq!(rang.recv_timeout(MINUTE), Ok(2));
    assert!(woken.try_recv().is_err());
    drop(never);
    assert!(left(timer, |queue| queue.first().is_none()));
}

/// The thread is parked for the hour when the earlier sleep arrives. If it were not notified, this
/// would take the hour.
#[test]
fn an_earlier_sleep_wakes_the_parked_thread() {
    let timer = timer(start_thread);
    let (waker, _hour) = sending_waker(0);
    let mut hour = sleep(timer, 3_600_000);
    assert!(is_pending(&mut hour, &waker));
    while timer.lock().checks_at == Nanos::ZERO {
        std::thread::yield_now();
    }
    let (waker, woken) = sending_waker(1);
    let mut soon = sleep(timer, 1);
    assert!(is_pending(&mut soon, &waker));
    assert_eq!(woken.recv_timeout(MINUTE), Ok(1));
    // After a reset it is earlier, too.
    let (waker, woken) = sending_waker(2);
    assert!(is_pending(&mut hour, &waker));
    while timer.lock().checks_at == Nanos::ZERO {
        std::thread::yield_now();
    }
    hour.as_mut().reset(ms(1));
    assert_eq!(woken.recv_timeout(MINUTE), Ok(2));
}

/// Without a thread, this shows the notifications that a parked thread would get.
#[test]
fn sleeps_within_the_grain_notify_the_thread_once() {
    let timer = timer(no_thread);
    let parked_until = |at| timer.lock().checks_at = at;
    let checks_at = |at| {
        timer.insert(at, Waker::noop().clone());
        timer.lock().checks_at
    };
    timer.lock().not_before = ms(10);
    parked_until(Nanos::MAX);
    assert_eq!([ms(30), ms(40), ms(20)].map(checks_at), [ms(30), ms(30), ms(20)]);
    assert_eq!([ms(9), ms(3), ms(10)].map(checks_at), [ms(10); 3]);
    parked_until(Nanos::ZERO);
    assert_eq!(checks_at(ms(1)), Nanos::ZERO, "it is awake");
}

#[test]
fn a_sleep_reset_to_the_past_fires_at_once_and_a_dropped_one_never() {
    let timer = timer(no_thread);
    let clock = ManualClock::starting_at(ms(5));
    let (waker, woken) = sending_waker(3);
    let mut sleep = Box::pin(ThreadSleep::by(timer, clock.clone(), ms(9)));
    assert!(is_pending(&mut sleep, &waker));
    sleep.as_mut().reset(ms(5));
    assert_eq!(woken.try_recv(), Ok(3));
    // The sleep was woken, so its waker is gone.
    sleep.as_mut().reset(ms(4));
    assert!(woken.try_recv().is_err());
    sleep.as_mut().reset(ms(9));
    assert!(left(timer, |queue| queue.first().is_none()));
    assert!(is_pending(&mut sleep, &waker));
    drop(sleep);
    assert!(left(timer, |queue| queue.first().is_none()));
}

#[test]
fn a_clock_that_went_back_makes_a_sleep_wait_again() {
    let timer = timer(start_thread);
    let clock = ManualClock::starting_at(ms(8));
    let (waker, woken) = sending_waker(4);
    let mut sleep = Box::pin(ThreadSleep::by(timer, clock.clone(), ms(9)));
    assert!(is_pending(&mut sleep, &waker));
    clock.set(ms(7));
    assert_eq!(woken.recv_timeout(MINUTE), Ok(4), "real time passed");
    assert!(is_pending(&mut sleep, &waker), "by its clock it is not due");
    assert_eq!(woken.recv_timeout(MINUTE), Ok(4));
    clock.set(ms(9));
    assert!(!is_pending(&mut sleep, &waker));
}

/// A sleep is dropped by its own waker, and by another thread while its waker is called.
#[test]
fn a_sleep_may_be_dropped_while_it_fires() {
    struct DropOnWake(Mutex<Option<Pin<Box<ThreadSleep<ManualClock>>>>>, Sender<u64>);
    impl Wake for DropOnWake {
        fn wake(self: Arc<Self>) {
            let sleep = self.0.lock().expect("no panic").take();
            drop(sleep);
            let _ = self.1.send(0);
        }
    }
    let timer = timer(start_thread);
    let (sender, woken) = channel();
    let cell = Arc::new(DropOnWake(Mutex::new(None), sender));
    let waker = Waker::from(cell.clone());
    let mut guard = cell.0.lock().expect("no panic");
    *guard = Some(sleep(timer, 1));
    assert!(guard.as_mut().is_some_and(|sleep| is_pending(sleep, &waker)));
    // The thread takes the waker, and waits for the lock that this thread holds.
    while left(timer, |queue| queue.first().is_some()) {
        std::thread::yield_now();
    }
    drop(guard);
    assert_eq!(woken.recv_timeout(MINUTE), Ok(0));
}

#[test]
fn a_waker_that_panics_does_not_end_the_thread() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let timer = timer(start_thread);
    let mut first = sleep(timer, 1);
    assert!(is_pending(&mut first, &Waker::from(Arc::new(Panics))));
    let (waker, woken) = sending_waker(5);
    let mut second = sleep(timer, 2);
    assert!(is_pending(&mut second, &waker));
    assert_eq!(woken.recv_timeout(MINUTE), Ok(5));
}

#[test]
fn a_sleep_is_gone_until_a_thread_can_be_started() {
    static ALLOWED: AtomicBool = AtomicBool::new(false);
    fn sometimes(timer: &'static AlarmThread) -> io::Result<()> {
        if ALLOWED.load(Ordering::Relaxed) { start_thread(timer) } else { no_thread(timer) }
    }
    let timer = timer(sometimes);
    let (waker, woken) = sending_waker(6);
    let mut sleep = sleep(timer, 20);
    for _ in 0..2 {
        assert!(is_pending(&mut sleep, &waker) && sleep.is_gone());
    }
    ALLOWED.store(true, Ordering::Relaxed);
    sleep.as_mut().reset(Nanos::MAX);
    assert!(is_pending(&mut sleep, &waker) && !sleep.is_gone());
    sleep.as_mut().reset(ms(1));
    assert_eq!(woken.recv_timeout(MINUTE), Ok(6));
}

#[test]
fn one_thread_is_started_in_each_process() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    fn counted(timer: &'static AlarmThread) -> io::Result<()> {
        STARTED.fetch_add(1, Ordering::Relaxed);
        start_thread(timer)
    }
    let timer = timer(counted);
    let mut sleeps: Vec<_> = (0..10).map(|_| sleep(timer, 60_000)).collect();
    assert!(sleeps.iter_mut().all(|sleep| is_pending(sleep, Waker::noop())));
    assert_eq!(STARTED.load(Ordering::Relaxed), 1);
    // This is the state in a forked process.
    timer.lock().started_in = Some(0);
    assert!(is_pending(&mut sleeps[0], Waker::noop()));
    assert_eq!(STARTED.load(Ordering::Relaxed), 2);
}

#[test]
fn a_million_sleeps_fire_and_leave_the_queue() {
    let timer = timer(start_thread);
    let (sender, woken) = channel();
    let waker = Waker::from(Arc::new(SendOnWake(sender, 0)));
    let clock = crate::SystemClock::new();
    let mut sleeps: Vec<_> = (0..1_000_000u64)
        .map(|number| {
            let at = Nanos::new(1 + number * 7919 % 1_000_000_000);
            Box::pin(ThreadSleep::by(timer, clock.clone(), at))
        })
        .collect();
    let pending = sleeps.iter_mut().filter_map(|sleep| is_pending(sleep, &waker).then_some(())).count();
    drop(waker);
    // Each pending sleep wakes once, and then the last sender is gone.
    assert_eq!(woken.iter().count(), pending);
    assert!(left(timer, |queue| queue.first().is_none()));
}

#[test]
fn sleeps_reset_and_dropped_in_many_threads_fire_at_their_last_time() {
    let timer = timer(start_thread);
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            scope.spawn(move || {
                for round in 0..300u64 {
                    let (waker, woken) = sending_waker(round);
                    let mut kept = sleep(timer, 3_600_000);
                    let mut dropped = sleep(timer, round % 3);
                    assert!(is_pending(&mut kept, &waker));
                    _ = is_pending(&mut dropped, &waker);
                    drop(dropped);
                    kept.as_mut().reset(Nanos::new(worker * 10_000 + round));
                    assert_eq!(woken.recv_timeout(MINUTE), Ok(round));
                }
            });
        }
    });
    assert!(left(timer, |queue| queue.first().is_none()));
}

#[test]
fn a_long_time_is_measured_in_steps() {
    assert_eq!(parking_time(ms(100)), Duration::from_millis(100));
    let hour = ms(3_600_000);
    let step = parking_time(hour);
    assert!(step < hour && step > Duration::from_secs(3590));
    assert!(parking_time(Nanos::new(u64::MAX - 1)) < Nanos::MAX);
}

/// Linux has the file in every mounted `/proc`.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_parks_precisely_has_the_least_slack() {
    let woken = std::thread::spawn(|| {
        precise_parking();
        let link = std::fs::read_link("/proc/thread-self").ok()?;
        std::fs::read_to_string(format!("/proc/{}/timerslack_ns", link.file_name()?.to_str()?)).ok()
    });
    assert_eq!(woken.join().expect("no panic").as_deref(), Some("1\n"));
}
