//! Times in replies that were once too early or too late, and what a pause, a reset and a clock
//! that is set back leave behind.

use std::time::Duration;

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest};
use crate::script_tests::{ANY_WAIT, Limit, Operation, START, Store, TRY};

const MS: Duration = Duration::from_millis(1);

/// A limit in a store of its own, and the times of calls in milliseconds.
struct Course {
    store: Store,
    limit: Limit,
}

impl Course {
    fn of(line: &str) -> Option<Course> {
        Some(Course { store: Store::new()?, limit: Limit::new(line) })
    }

    fn call(&mut self, millis: u64, operation: Operation, n: u64) -> Reply {
        self.store.call(operation, START + millis * 1_000, &[self.limit.part(n, &[])])
    }

    fn pause(&mut self, millis: u64, span: Duration, keep_permits: bool) {
        self.call(millis, Operation::Pause { span, keep_permits }, 1);
    }

    /// Settles a grant as unused.
    fn settle(&mut self, millis: u64, granted: u64, n: u64) {
        let due = i64::try_from(START + granted * 1_000).expect("an instant");
        self.call(millis, Operation::Refund { due }, n);
    }

    /// Drops a wait.
    fn drop_wait(&mut self, millis: u64, wait: &Reply, n: u64) {
        let back = GivenBack { permits: &[n], ..wait.given_back() };
        self.store.reserve(START + millis * 1_000, &[self.limit.part(n, &[])], &[back], &[]);
    }

    /// A refused request is told this wait, in milliseconds, and is granted after it.
    fn is_granted_after(&mut self, millis: u64, n: u64, wait: u64) {
        let told = self.call(millis, TRY, n);
        assert_eq!((told.answer, told.wait), (Answer::Refused, Duration::from_millis(wait)));
        assert_eq!(self.call(millis + wait, TRY, n).answer, Answer::Done);
    }
}

/// Bug: places of a log before its last booking were promised to a request that does not wait. When
/// it came again, the log no longer had them.
#[test]
fn a_log_promises_no_place_that_is_gone_behind_a_pause() {
    let Some(mut log) = Course::of("sliding_log 10/s") else { return };
    assert_eq!(log.call(0, TRY, 10).answer, Answer::Done);
    let wait = log.call(0, ANY_WAIT, 9);
    log.call(0, Operation::Debit, 2);
    log.pause(0, 1500 * MS, true);
    log.drop_wait(0, &wait, 9);
    log.is_granted_after(0, 9, 2000);
}

/// Bug: a wait that was predicted behind a pause without permits let the next request expect the
/// permits of a step before the step.
#[test]
fn a_bucket_in_steps_promises_no_step_early_in_a_pause() {
    let Some(mut bucket) = Course::of("token_bucket 10/s burst 10 interval_refill") else { return };
    assert_eq!(bucket.call(0, TRY, 1).answer, Answer::Done);
    assert_eq!(bucket.call(0, TRY, 9).answer, Answer::Done);
    bucket.pause(100, 400 * MS, false);
    bucket.settle(200, 0, 1);
    assert_eq!(bucket.call(200, TRY, 1).wait, 800 * MS);
    assert_eq!(bucket.call(200, ANY_WAIT, 1).answer, Answer::Predicted);
    assert_eq!(bucket.call(200, TRY, 1).wait, 800 * MS);
}

/// Bug: a request that does not wait was told an interval too much, because permits that were given
/// back were left to later requests.
#[test]
fn a_request_that_does_not_wait_is_granted_when_the_last_wait_is_due() {
    let Some(mut bucket) = Course::of("smooth_bursty 5/s") else { return };
    assert_eq!(bucket.call(5337, TRY, 1).answer, Answer::Done);
    for due in [200, 400, 600, 800] {
        assert_eq!(bucket.call(5337, ANY_WAIT, 1).wait, due * MS);
    }
    bucket.settle(5880, 5737, 1);
    bucket.is_granted_after(5999, 1, 138);
}

/// Bug: the reply reported a pause that was over, because the server's clock was set back.
#[test]
fn a_pause_that_is_over_is_not_reported_again() {
    let Some(mut bucket) = Course::of("token_bucket 10/s burst 10 interval_refill") else { return };
    bucket.pause(100, 400 * MS, true);
    assert_eq!(bucket.call(1000, TRY, 1).answer, Answer::Done);
    assert_eq!(bucket.call(200, Operation::Status, 1).limits[0].paused_for, Duration::ZERO);
    assert_eq!(bucket.call(200, TRY, 1).answer, Answer::Done);
}

/// Bug: what was known of the predicted bookings stayed when a pause had ended: waits that were
/// dropped later stayed debited.
#[test]
fn predicted_waits_leave_nothing_behind_a_pause() {
    let state = |predicts: bool| {
        let mut limit = Course::of("sliding_estimate 10/s")?;
        assert_eq!(limit.call(0, TRY, 10).answer, Answer::Done);
        limit.pause(1, 199 * MS, true);
        if predicts {
            let waits: Vec<Reply> = (0..6).map(|_| limit.call(2, ANY_WAIT, 2)).collect();
            waits[..2].iter().for_each(|wait| limit.drop_wait(3, wait, 2));
            assert_eq!(limit.call(4, ANY_WAIT, 4).answer, Answer::Predicted);
        }
        let costs = vec![(2, 2)];
        let one = || ReserveRequest {
            longest: Duration::MAX,
            mode: Mode::Normal,
            wants_state: true,
            costs: costs.clone(),
        };
        let (requests, part) = ([(); 8].map(|()| one()), [limit.limit.part(2, &[])]);
        let waits = limit.store.reserve(START + 300_000, &part, &[], &requests);
        waits[1..].iter().rev().for_each(|wait| limit.drop_wait(301, wait, 2));
        Some(limit.call(302, Operation::Status, 1).limits)
    };
    assert_eq!(state(true), state(false));
}

/// Bug: a bucket that stood still in a pause forgot a reset after twice its span of the clock. Then
/// permits from before the reset came back.
#[test]
fn a_pause_does_not_make_a_bucket_forget_a_reset() {
    // Returns how many permits are granted behind the pause.
    let granted = |line, is_ended_sooner, settles| {
        let mut bucket = Course::of(line)?;
        bucket.call(0, TRY, 1);
        assert_eq!(bucket.call(400, TRY, 18).answer, Answer::Done, "{line}");
        bucket.call(401, Operation::Reset, 1);
        bucket.pause(402, if is_ended_sooner { 3600 * MS } else { 1400 * MS }, true);
        let settle = |bucket: &mut Course, at| {
            if settles {
                bucket.settle(at, 400, 18)
            }
        };
        settle(&mut bucket, 1800);
        if is_ended_sooner {
            bucket.call(1802, Operation::Resume, 1);
        }
        settle(&mut bucket, 1802);
        let count = (0..).take_while(|_| bucket.call(1802, TRY, 1).answer == Answer::Done).count();
        settle(&mut bucket, 2000);
        Some((count, (0..).take_while(|_| bucket.call(2000, TRY, 1).answer == Answer::Done).count()))
    };
    for is_ended_sooner in [false, true] {
        for line in ["smooth_bursty 100/s max_burst 200ms", "token_bucket 100/s burst 20 start_with 0"] {
            let [without, with] = [false, true].map(|settles| granted(line, is_ended_sooner, settles));
            assert_eq!(without, with, "{line}, ended sooner: {is_ended_sooner}");
        }
    }
}

/// Bug: after a reset, and a clock that was set back by a day, no settlement gave anything back for
/// a day.
#[test]
fn grants_come_back_after_a_reset_and_a_clock_that_is_set_back() {
    for line in ["fixed_window 10/s", "token_bucket 10/s burst 10", "sliding_log 10/s"] {
        let Some(mut limit) = Course::of(line) else { return };
        let day = 86_400_000;
        assert_eq!(limit.call(day, TRY, 5).answer, Answer::Done, "{line}");
        limit.call(day, Operation::Reset, 1);
        assert_eq!(limit.call(day, TRY, 10).answer, Answer::Done, "{line}");
        assert_eq!(limit.call(0, TRY, 1).answer, Answer::Refused, "{line}");
        let wait = limit.call(10, ANY_WAIT, 5).wait;
        let due = 10 + u64::try_from(wait.as_millis()).expect("a wait");
        limit.settle(due + 1, due, 5);
        assert_eq!(limit.call(due + 1, TRY, 5).answer, Answer::Done, "{line}");
    }
}

/// Bug: idle time behind a dropped wait did not count for a request larger than the burst: each try
/// of the request found the bucket exactly full, and was told the same wait.
#[test]
fn idle_time_counts_behind_a_dropped_wait() {
    for (line, burst, size, debt, now) in [
        ("leaky_bucket 10/s nodelay 3", 4, 4, 0, 501),
        ("leaky_bucket 10/s nodelay 3", 4, 9, 3, 901),
        ("leaky_bucket 10/s", 1, 40, 40, 4001),
    ] {
        let Some(bucket) = Course::of(line) else { return };
        let mut bucket = Course { limit: bucket.limit.without_longest(), ..bucket };
        assert_eq!(bucket.call(0, TRY, burst).answer, Answer::Done);
        let dropped = bucket.call(0, ANY_WAIT, size);
        // No wait from before it is undone.
        match debt {
            0 => assert_eq!(bucket.call(0, ANY_WAIT, 1).answer, Answer::Done),
            debt => assert_eq!(bucket.call(0, Operation::Debit, debt).answer, Answer::Done),
        }
        bucket.drop_wait(1, &dropped, size);
        let told = u64::try_from(bucket.call(now, TRY, burst + 1).wait.as_millis()).expect("a wait");
        bucket.is_granted_after(now, burst + 1, told);
    }
}

/// Bug: a request whose maximum wait was longer than that of a limit was told the end of a place,
/// as if it could wait for that end. When it asked again, the place was gone.
#[test]
fn a_limit_that_allows_no_wait_promises_no_place_that_ends() {
    let Some(mut store) = Store::new() else { return };
    let leaky = Limit::new("leaky_bucket 10/s nodelay 3 capacity 3");
    let bucket = Limit::new("token_bucket 10/s burst 10");
    let mut call = |operation, micros, n, m, before: &[u8]| {
        store.call(operation, START + micros, &[leaky.part(n, &[]), bucket.part(m, before)])
    };
    assert_eq!(call(TRY, 0, 4, 10, &[]).answer, Answer::Done);
    let wait = call(ANY_WAIT, 1_000, 0, 3, &[]);
    call(Operation::Debit, 2_000, 0, 3, &[]);
    call(Operation::Back { due: wait.due }, 3_000, 0, 3, &wait.before[1]);
    let within = Operation::Reserve { longest: Duration::from_secs(4), shadow: false };
    let refused = call(within, 4_000, 1, 1, &[]);
    assert_eq!(refused.answer, Answer::Refused);
    let told = 4_000 + u64::try_from(refused.wait.as_micros()).expect("a wait");
    assert_eq!(call(within, told, 1, 1, &[]).answer, Answer::Done);
}

/// Bug: while the clock of a limit stood still, because the server's clock was slightly behind, the
/// reply reported no permits of grants that were given back, although a request got them.
#[test]
fn permits_that_come_back_while_a_clock_stands_still_are_available() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 10/s burst 10 interval_refill");
    let mut call =
        |operation, micros, n, before: &[u8]| store.call(operation, START + micros, &[limit.part(n, before)]);
    for n in [2, 6] {
        assert_eq!(call(TRY, 881_527, n, &[]).answer, Answer::Done);
    }
    let grant = call(TRY, 781_527, 2, &[]);
    let wait = call(ANY_WAIT, 781_527, 4, &[]);
    call(Operation::Refund { due: grant.due }, 818_961, 1, &[]);
    call(Operation::Back { due: wait.due }, 818_961, 4, &wait.before[0]);
    assert_eq!(call(Operation::Status, 818_961, 0, &[]).limits[0].available, 1);
    assert_eq!(call(TRY, 818_961, 2, &[]).answer, Answer::Refused);
    assert_eq!(call(TRY, 818_961, 1, &[]).answer, Answer::Done);
}
