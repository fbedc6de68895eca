//! Rates whose intervals are not whole microseconds, against a bucket of unbounded integers.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::script::{Answer, NO_GRANT};
use crate::script_tests::conformance::calls;
use crate::script_tests::{Limit, Operation, START, Store, TRY};
use crate::terms::Numbers;

/// `refill` units accrue in each microsecond, and a permit costs `price`.
struct Bucket {
    refill: i128,
    price: i128,
    cap: i128,
    level: i128,
    /// The time at which the level had this value.
    booked: i128,
    seen: i128,
}

impl Bucket {
    /// Of permits per second.
    fn new(permits: i128, burst: i128, now: i128) -> Bucket {
        let (mut a, mut b) = (permits, 1_000_000);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let (refill, price) = (permits / a, 1_000_000 / a);
        // Units that accrue beyond a price in its last microsecond have room.
        let cap = burst * price + refill - 1;
        Bucket { refill, price, cap, level: burst * price, booked: now, seen: now }
    }

    /// Permits now, or the wait for them.
    fn try_acquire(&mut self, now: i128, n: i128) -> Result<(), i128> {
        let ahead = self.seen - now;
        if ahead > (self.cap + self.price + self.refill - 1) / self.refill {
            // The clock was set back: all times move with it.
            (self.seen, self.booked) = (now, self.booked - ahead);
        }
        let at = now.max(self.seen).max(self.booked);
        let level = self.cap.min(self.level + (at - self.booked) * self.refill);
        let missing = n * self.price - level;
        if missing > 0 {
            return Err(at + (missing + self.refill - 1) / self.refill - now);
        }
        (self.level, self.booked, self.seen) = (-missing, at, at);
        Ok(())
    }

    fn debit(&mut self, now: i128, n: i128) {
        let level = self.cap.min(self.level + (now - self.booked) * self.refill);
        (self.level, self.booked, self.seen) = (level - n * self.price, now, now);
    }
}

/// Regression: debits of more than some minutes of a rate of many digits blocked the limit for a
/// century.
#[test]
fn debits_of_any_size_are_owed_exactly() {
    let Some(mut store) = Store::new() else { return };
    let rates =
        [("0.333333333/s", 1), ("1.666667/min", 20), ("33.333333/s", 1000), ("999983/s", 1), ("7/s", 5)];
    for (seed, (rate, burst)) in (0..).zip(rates) {
        let mut random = SmallRng::seed_from_u64(seed);
        let limit = Limit::new(&format!("token_bucket {rate} burst {burst}"));
        let Numbers::Bucket(numbers) = limit.terms.numbers else { panic!("a bucket") };
        let micros = |units: i128| u64::try_from(units / i128::from(numbers.refill)).expect("a time");
        let mut now = START;
        let mut bucket = Bucket {
            refill: numbers.refill.into(),
            price: numbers.price.into(),
            cap: numbers.cap.into(),
            level: numbers.full.into(),
            booked: now.into(),
            seen: now.into(),
        };
        let (mut granted, mut refused) = (0, 0);
        for i in 0..400 {
            let owed = micros(-bucket.level.min(0));
            now += match random.random_range(0..4) {
                // A new key is as of its first call.
                _ if i == 0 => 0,
                0 => 0,
                // Up to the time at which the debts are paid.
                1 => random.random_range(0..=owed),
                2 => owed,
                _ => random.random_range(0..=1_000_000),
            };
            if random.random_ratio(1, 6) {
                let most = [10, 10_000, 100_000_000][random.random_range(0..3)];
                // The debit takes half a year to pay at most: a debt of a century is owed for ever.
                let half_a_year = (1 << 44) / micros(bucket.price).max(1);
                let n = random.random_range(1..=most).min(half_a_year);
                bucket.debit(now.into(), n.into());
                store.call(Operation::Debit, now, &[limit.part(n, &[])]);
            }
            let n = random.random_range(1..=burst);
            let reply = store.call(TRY, now, &[limit.part(n, &[])]);
            let context = format!("{rate}: call {i} of {n} at {now}");
            match bucket.try_acquire(now.into(), n.into()) {
                Ok(()) => {
                    granted += 1;
                    assert_eq!(reply.answer, Answer::Done, "{context}");
                }
                Err(wait) => {
                    refused += 1;
                    assert_eq!(reply.answer, Answer::Refused, "{context}");
                    let wait = Duration::from_micros(u64::try_from(wait).expect("a wait"));
                    assert_eq!(reply.wait, wait, "{context}");
                }
            }
        }
        assert!(granted.min(refused) > 20, "{rate}: {granted} granted, {refused} refused");
    }
}

/// A refund beside a debt that does not fit the level gave back one permit.
#[test]
fn a_refund_makes_a_large_debt_smaller() {
    let Some(mut store) = Store::new() else { return };
    for (line, debit, back) in [
        ("token_bucket 33.333333/s burst 1000", 100_001, 2_000),
        ("token_bucket 0.333333333/s burst 2", 1_000, 2),
        ("token_bucket 1.666667/min burst 20", 300, 30),
        ("leaky_bucket 12.345678/s nodelay 99", 50_000, 1_000),
        ("smooth_bursty 33.333333/s", 50_000, 1_000),
        ("token_bucket 100/s burst 1000", 50_000, 10_000),
    ] {
        let limit = Limit::new(line);
        let mut call = |operation, n| store.call(operation, START, &[limit.part(n, &[])]).wait;
        call(Operation::Debit, debit);
        let before = call(TRY, 1);
        call(Operation::Refund { due: NO_GRANT }, back);
        let paid = before - call(TRY, 1);
        let expected = limit.terms.rate.period().mul_f64(back as f64 / limit.terms.rate.permits());
        assert!(paid.abs_diff(expected) < Duration::from_micros(10), "{line}: {paid:?}, {expected:?}");
    }
}

/// With one permit more, the price does not fit the numbers of a script.
#[test]
fn the_largest_request_of_an_odd_rate_is_due_some_day() {
    let Some(mut store) = Store::new() else { return };
    for line in ["leaky_bucket 0.333333333/s", "smooth_bursty 0.333333333/s", "smooth_bursty 1/365d"] {
        let limit = Limit::new(line);
        let largest = limit.terms.largest.expect("a largest request");
        let replies = store.run(&limit, &[(TRY, START, largest), (TRY, START, largest + 1)]);
        assert_ne!(replies[0].wait, Duration::MAX, "{line}: {largest}");
        assert_eq!(replies[1].wait, Duration::MAX, "{line}: {largest}");
    }
    for line in ["leaky_bucket 100/s capacity 5", "smooth_bursty 3/s", "smooth_bursty zero"] {
        assert_eq!(Limit::new(line).terms.largest, None, "{line}");
    }
}

/// Regression: a new `smooth_bursty` of rate zero granted its first request, of any size.
#[test]
fn a_rate_of_zero_grants_nothing_beyond_a_burst() {
    let Some(mut store) = Store::new() else { return };
    for (line, granted) in
        [("smooth_bursty zero", 0), ("smooth_bursty zero start_full", 0), ("token_bucket zero burst 5", 5)]
    {
        let limit = Limit::new(line);
        for n in [1_000_000, 1] {
            let reply = &store.run(&limit, &[(TRY, START, n)])[0];
            let expected = if n <= granted { Answer::Done } else { Answer::Refused };
            assert_eq!(reply.answer, expected, "{line}: {n}");
            assert!(n <= granted || reply.wait == Duration::MAX, "{line}: {n} in {:?}", reply.wait);
        }
    }
}

#[test]
fn odd_rates_are_met_exactly_under_a_clock_that_steps() {
    let Some(mut store) = Store::new() else { return };
    let rates = [(3, 2), (7, 5), (11, 100), (333_333, 10), (1_500_000, 40), (999_983, 1)];
    for (seed, (permits, burst)) in (0..).zip(rates) {
        let mut random = SmallRng::seed_from_u64(seed);
        let limit = Limit::new(&format!("token_bucket {permits}/s burst {burst}"));
        let interval = 1_000_000 / permits + 1;
        let mut now = START + 1_000_000_000;
        let asked: Vec<(Operation, u64, u64)> = (0..calls())
            .map(|_| {
                now += match random.random_range(0..100) {
                    0..20 => 0,
                    20..95 => random.random_range(0..=2 * interval),
                    95..99 => random.random_range(0..=20 * interval),
                    _ => 10_000_000,
                };
                // Back by a little, by seconds, and by an hour at most.
                now -= match random.random_range(0..200) {
                    0..10 => random.random_range(0..=interval),
                    10 => random.random_range(0..10_000_000),
                    11 if now > START + 7_200_000_000 => 3_600_000_000,
                    _ => 0,
                };
                if random.random_ratio(1, 500) {
                    now += 3_600_000_000;
                }
                (TRY, now, if random.random_ratio(2, 3) { 1 } else { random.random_range(1..=burst) })
            })
            .collect();
        let mut bucket = Bucket::new(permits.into(), burst.into(), asked[0].1.into());
        let replies = store.run(&limit, &asked);
        let (mut granted, mut refused) = (0, 0);
        for (i, ((_, now, n), reply)) in asked.iter().zip(&replies).enumerate() {
            let context = format!("{permits}/s: call {i} of {n} at {now}");
            match bucket.try_acquire((*now).into(), (*n).into()) {
                Ok(()) => {
                    granted += 1;
                    assert_eq!(reply.answer, Answer::Done, "{context}");
                }
                Err(wait) => {
                    refused += 1;
                    assert_eq!(reply.answer, Answer::Refused, "{context}");
                    let wait = Duration::from_micros(u64::try_from(wait).expect("a wait"));
                    assert_eq!(reply.wait, wait, "{context}");
                }
            }
        }
        assert!(granted.min(refused) > asked.len() / 20, "{permits}/s: {granted} granted, {refused} refused");
    }
}
