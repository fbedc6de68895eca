//! Obeying a server: one test for each rule, on a manual clock.

#![allow(clippy::unwrap_used)]

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation,
    CountingLimit, FixedWindow, KeyedAllOf, KeyedRateLimiter, Limiter, ManualClock, OfKey, Pause, Rate,
    RateLimiter, Refusal, Request, SmoothBursty, TokenBucket, Unlimited,
};
use tidegate_http::When;
use tidegate_http::obey::{Call, CallReservation, Obey, Obeyed, Options, Pace, Scopes};
use tidegate_http::read::{Reader, ResponseLimits, Vendor};

const DATE: (&str, &str) = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    pairs.iter().map(header).collect()
}

fn obey(call: &mut Call, status: u16, pairs: &[(&str, &str)]) -> Obeyed {
    call.obey(StatusCode::from_u16(status).unwrap(), &headers(pairs))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn options(clock: &ManualClock) -> Options {
    Options::new().clock(clock.clone()).jitter(0.0)
}

/// A limiter of 100/s with a burst of 100. The server stops it long before that.
struct World {
    clock: ManualClock,
    limiter: RateLimiter<TokenBucket, ManualClock>,
    api: Obey,
}

fn world() -> World {
    world_with(|options| options)
}

fn world_with(set: impl FnOnce(Options) -> Options) -> World {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let api = Obey::with_options(limiter.clone(), set(options(&clock)));
    World { clock, limiter, api }
}

impl World {
    fn call(&self) -> Call {
        self.api.try_acquire().unwrap()
    }

    /// Makes one call, which gets its response at once.
    fn respond(&self, status: u16, pairs: &[(&str, &str)]) -> Obeyed {
        obey(&mut self.call(), status, pairs)
    }

    fn paused_for(&self) -> Duration {
        self.limiter.status().paused_for
    }

    /// Waits until the pause is over and a permit is available.
    fn come_back(&self) {
        self.clock.advance(self.limiter.status().next_in);
    }

    fn available(&self) -> u64 {
        self.limiter.status().available
    }
}

// Pauses.

#[test]
fn a_refusal_with_a_time_pauses() {
    for status in [429, 503] {
        let world = world();
        let obeyed = world.respond(status, &[("retry-after", "30")]);
        assert_eq!(obeyed.paused_for, Some(secs(30)));
        assert_eq!(world.paused_for(), secs(30));
        assert!(world.api.try_acquire().is_err());
        world.clock.advance(secs(30) + Duration::from_millis(10));
        // The calls are one interval apart: no burst follows.
        assert_eq!(world.available(), 1);
        assert!(world.api.try_acquire().is_ok());
    }
}

#[test]
fn a_403_of_github_pauses_if_a_header_says_that_a_limit_refused() {
    let github = || world_with(|options| options.reader(Reader::of(Vendor::GitHub)));
    let secondary = github();
    secondary.respond(403, &[("retry-after", "60")]);
    assert_eq!(secondary.paused_for(), secs(60));

    let primary = github();
    // The reset is 60 s after the `Date`.
    let pairs = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567740"), DATE];
    primary.respond(403, &pairs);
    assert_eq!(primary.paused_for(), secs(60));

    let forbidden = github();
    forbidden.respond(403, &[("x-ratelimit-remaining", "14"), ("x-ratelimit-reset", "1792567740"), DATE]);
    assert_eq!(forbidden.paused_for(), Duration::ZERO);
}

#[test]
fn a_refusal_without_a_time_of_github_backs_off_for_a_minute() {
    let world = world_with(|options| options.reader(Reader::of(Vendor::GitHub)));
    world.respond(429, &[("x-ratelimit-remaining", "14"), ("x-ratelimit-limit", "30")]);
    assert_eq!(world.paused_for(), secs(60));
    world.come_back();
    world.respond(429, &[]);
    assert_eq!(world.paused_for(), secs(120));
}

#[test]
fn retry_after_comes_before_a_reset() {
    let world = world();
    world.respond(429, &[("ratelimit", "\"a\";r=0;t=30"), ("retry-after", "5")]);
    assert_eq!(world.paused_for(), secs(5));
    world.come_back();
    assert!(world.api.try_acquire().is_ok());
}

#[test]
fn a_limit_with_nothing_left_pauses_until_its_reset() {
    for status in [200, 429] {
        let world = world();
        world.respond(status, &[("ratelimit", "\"a\";r=0;t=30, \"b\";r=7;t=90")]);
        assert_eq!(world.paused_for(), secs(30));
    }
}

#[test]
fn other_errors_do_not_pause() {
    let world = world();
    for status in [400, 401, 403, 404, 500, 502, 503] {
        let obeyed = world.respond(status, &[]);
        assert_eq!(obeyed.paused_for, None, "{status}");
    }
    assert_eq!(world.paused_for(), Duration::ZERO);
}

#[test]
fn an_option_says_which_responses_are_refusals() {
    let world = world_with(|options| options.refusal(|status, _| status.as_u16() == 503));
    world.respond(503, &[]);
    assert_eq!(world.paused_for(), secs(1));
}

#[test]
fn back_off_doubles_up_to_the_cap_and_ends_with_the_first_success() {
    let world = world_with(|options| options.max_pause(secs(10)));
    for wait in [1, 2, 4, 8, 10, 10] {
        assert_eq!(world.respond(429, &[]).paused_for, Some(secs(wait)));
        world.come_back();
    }
    world.clock.advance(secs(1));
    // An error that is not a refusal is not a success either.
    world.respond(500, &[]);
    assert_eq!(world.respond(429, &[]).paused_for, Some(secs(10)));
    world.come_back();
    world.clock.advance(secs(1));
    world.respond(404, &[]);
    assert_eq!(world.respond(429, &[]).paused_for, Some(secs(1)));
}

/// Bug: limits that were read from the body of an error made the call a success. So did limits in the
/// messages of a gRPC call before its status came.
#[test]
fn limits_in_a_body_make_no_success_of_a_call_that_has_none() {
    for (status, pairs) in [(500, &[][..]), (200, &[("content-type", "application/grpc")])] {
        let world = world();
        world.respond(429, &[]);
        world.clock.advance(secs(2));
        let mut call = world.call();
        obey(&mut call, status, pairs);
        call.obey_limits(ResponseLimits::default());
        assert_eq!(world.respond(429, &[]).paused_for, Some(secs(2)), "{status}");
    }
}

#[test]
fn very_many_refusals_in_a_row_pause_for_the_cap() {
    let world = world();
    for _ in 0..100 {
        world.respond(429, &[]);
        world.come_back();
    }
    assert_eq!(world.respond(429, &[]).paused_for, Some(secs(600)));
}

#[test]
fn one_refusal_of_five_calls_in_flight_is_one_pause() {
    let world = world();
    let mut calls: Vec<_> = (0..5).map(|_| world.call()).collect();
    for call in &mut calls {
        obey(call, 429, &[]);
        world.clock.advance(Duration::from_millis(100));
    }
    // The pause began with the first refusal.
    assert_eq!(world.paused_for(), Duration::from_millis(500));
    world.come_back();
    // The next refusal counts as the second, not as the sixth.
    assert_eq!(world.respond(429, &[]).paused_for, Some(secs(2)));
}

#[test]
fn the_longest_end_counts() {
    let world = world();
    let mut calls: Vec<_> = (0..5).map(|_| world.call()).collect();
    for (call, wait) in calls.iter_mut().zip(["3", "9", "1", "9", "4"]) {
        obey(call, 429, &[("retry-after", wait)]);
    }
    assert_eq!(world.paused_for(), secs(9));
}

#[test]
fn a_success_of_a_call_from_before_the_refusal_ends_no_row_of_refusals() {
    let world = world();
    let (mut refused, mut granted) = (world.call(), world.call());
    obey(&mut refused, 429, &[]);
    obey(&mut granted, 200, &[]);
    world.come_back();
    assert_eq!(world.respond(429, &[]).paused_for, Some(secs(2)));
}

#[test]
fn no_pause_is_longer_than_the_cap_and_the_response_reports_when_it_cuts() {
    let world = world();
    let obeyed = world.respond(429, &[("retry-after", "86400")]);
    assert_eq!(obeyed.paused_for, Some(secs(600)));
    assert_eq!(obeyed.asked_for, Some(secs(86400)));
    world.come_back();
    let obeyed = world.respond(200, &[("ratelimit", "\"a\";r=0;t=86400")]);
    assert_eq!(obeyed.paused_for, Some(secs(600)));
    assert_eq!(obeyed.asked_for, Some(secs(86400)));
    world.come_back();
    assert!(world.api.try_acquire().is_ok());
}

#[test]
fn jitter_prolongs_by_at_most_its_part_and_is_one_for_calls_in_flight_together() {
    let mut waits = Vec::new();
    for _ in 0..20 {
        let world = world_with(|options| options.jitter(0.1));
        let mut calls: Vec<_> = (0..5).map(|_| world.call()).collect();
        for call in &mut calls {
            let wait = obey(call, 429, &[("retry-after", "100")]).paused_for.unwrap();
            assert!((secs(100)..=secs(110)).contains(&wait), "{wait:?}");
            waits.push(wait);
        }
        assert!(waits.iter().rev().take(5).all(|wait| Some(wait) == waits.last()));
    }
    waits.dedup();
    assert!(waits.len() > 10, "{waits:?}");
}

#[test]
fn a_jitter_that_is_no_part_is_the_nearest() {
    for (part, most) in [(f64::NAN, 0), (-1.0, 0), (f64::INFINITY, 100), (1e300, 100)] {
        let world = world_with(|options| options.jitter(part));
        let wait = world.respond(429, &[("retry-after", "100")]).paused_for.unwrap();
        assert!((secs(100)..=secs(100 + most)).contains(&wait), "{part}: {wait:?}");
    }
}

// The units that remain.

#[test]
fn remaining_lowers_the_available_permits_and_never_raises_them() {
    let world = world();
    world.respond(200, &[("x-ratelimit-remaining", "30")]);
    assert_eq!(world.available(), 30);
    world.respond(200, &[("x-ratelimit-remaining", "5000")]);
    assert_eq!(world.available(), 29);
    world.respond(200, &[("x-ratelimit-remaining", "0")]);
    // Without a reset, the limiter goes on at its own rate.
    assert_eq!((world.available(), world.paused_for()), (0, Duration::ZERO));
}

#[test]
fn remaining_is_lowered_by_calls_in_flight() {
    let world = world();
    let mut first = world.call();
    let _others: Vec<_> = (0..4).map(|_| world.call()).collect();
    assert_eq!(world.api.in_flight(), 5);
    obey(&mut first, 200, &[("x-ratelimit-remaining", "30")]);
    assert_eq!(world.available(), 26);
    assert_eq!(world.api.in_flight(), 4);
}

#[test]
fn remaining_is_lowered_by_calls_without_a_response_that_the_server_may_not_have_counted() {
    let world = world();
    drop(world.call()); // it ended before the first began
    let (mut first, second) = (world.call(), world.call());
    drop(second);
    let mut third = world.call();
    obey(&mut third, 200, &[]); // reports nothing
    obey(&mut first, 200, &[("x-ratelimit-remaining", "30")]);
    assert_eq!(world.available(), 28);
}

#[test]
fn an_older_remaining_after_a_newer_one_does_not_raise() {
    let world = world();
    let (mut old, mut new) = (world.call(), world.call());
    obey(&mut new, 200, &[("ratelimit", "\"a\";r=20;t=60")]);
    assert_eq!(world.available(), 19);
    obey(&mut old, 200, &[("ratelimit", "\"a\";r=21;t=60")]);
    assert_eq!(world.available(), 19);
    for _ in 0..19 {
        drop(world.call());
    }
    assert!(world.api.try_acquire().is_err());
}

#[test]
fn an_older_remaining_that_was_long_on_its_way_does_not_raise() {
    let world = world();
    let mut old = world.call();
    world.respond(200, &[("ratelimit", "\"a\";r=3;t=60")]);
    world.clock.advance(secs(20));
    // Its reset looks like one that is 20 s later.
    obey(&mut old, 200, &[("ratelimit", "\"a\";r=50;t=60")]);
    // Three units, less the call in flight.
    let calls: Vec<_> = (0..4).map_while(|_| world.api.try_acquire().ok()).collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(world.paused_for(), secs(42));
}

/// Regression: each response without a report of the limit added the call's cost to the calls that
/// the server may not have counted, even after the response that ended the call.
#[test]
fn a_second_response_of_a_call_does_not_count_it_again() {
    let world = world();
    let (mut first, mut second) = (world.call(), world.call());
    obey(&mut first, 200, &[("ratelimit", "\"a\";r=2;t=60")]);
    // Its body reported nothing.
    first.obey_limits(ResponseLimits::default());
    obey(&mut second, 200, &[("ratelimit", "\"a\";r=1;t=60")]);
    assert_eq!(world.paused_for(), Duration::ZERO);
    assert!(world.api.try_acquire().is_ok());
    assert!(world.api.try_acquire().is_err());
}

/// Bug: the trailers of a call reported how many units were left after the call, and its cost was
/// subtracted from them, because its headers had reported nothing.
#[test]
fn a_second_response_that_reports_the_limit_has_counted_its_own_call() {
    let world = world();
    let (mut call, mut other) = (world.call(), world.call());
    obey(&mut call, 200, &[("content-type", "application/grpc")]);
    // The server may not have counted this one.
    obey(&mut other, 200, &[]);
    obey(&mut call, 200, &[("grpc-status", "0"), ("ratelimit", "\"a\";r=2;t=60")]);
    assert_eq!(world.paused_for(), Duration::ZERO);
    assert!(world.api.try_acquire().is_ok());
    assert!(world.api.try_acquire().is_err());
}

#[test]
fn calls_whose_responses_report_another_limit_are_not_counted_by_this_one() {
    let clock = ManualClock::new();
    let limiter =
        |burst: u32| RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), burst), clock.clone());
    let (requests, tokens) = (limiter(100), limiter(1000));
    let all = AllOf::new("requests", &requests).with("tokens", &tokens);
    let api = Obey::with_options(all, options(&clock));
    let call = |n| api.try_acquire_many([("tokens", n)]).unwrap();
    let (mut first, mut second) = (call(10), call(100));
    obey(&mut second, 200, &[("x-ratelimit-remaining-requests", "50")]);
    obey(&mut first, 200, &[("x-ratelimit-remaining-tokens", "500")]);
    assert_eq!((requests.status().available, tokens.status().available), (49, 400));
}

#[test]
fn no_more_calls_begin_than_the_server_allows_until_the_reset() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=3;t=60")]);
    // The limiter refills at its own rate, but the server allows three.
    world.clock.advance(secs(10));
    assert_eq!(world.available(), 100);
    for _ in 0..3 {
        drop(world.call());
    }
    // The last of these calls pauses the limiter, not a response.
    assert_eq!(world.paused_for(), secs(50));
    world.clock.advance(secs(50) + Duration::from_millis(10));
    assert!(world.api.try_acquire().is_ok());
}

#[test]
fn a_newer_response_raises_only_when_the_reset_moved_on() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=3;t=60")]);
    world.respond(200, &[("ratelimit", "\"a\";r=50;t=61")]);
    world.clock.advance(secs(10));
    drop((world.call(), world.call()));
    assert!(world.api.try_acquire().is_err());
    world.come_back();
    world.clock.advance(secs(1));

    world.respond(200, &[("ratelimit", "\"a\";r=3;t=60")]);
    world.respond(200, &[("ratelimit", "\"a\";r=50;t=90")]);
    world.clock.advance(secs(10));
    for _ in 0..50 {
        drop(world.call());
    }
    assert!(world.api.try_acquire().is_err());
}

/// Sends the response to a call 500 ms after the call began, in a window of 10 units and 5 s.
fn response_of_ten(world: &World, mut call: Call, left: &str) {
    world.clock.advance(Duration::from_millis(500));
    let reported = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", "5")];
    obey(&mut call, 200, &reported);
}

/// Returns the calls of 50 tasks that begin now.
fn begun_now(world: &World) -> Vec<Call> {
    (0..50).map_while(|_| world.api.try_acquire().ok()).collect()
}

#[test]
fn the_next_window_begins_with_the_limit_that_the_server_reported() {
    let world = world();
    response_of_ten(&world, world.call(), "9");
    let in_flight = [world.call(), world.call(), world.call()];
    world.clock.advance(secs(6));
    let mut calls = begun_now(&world);
    assert_eq!(calls.len(), 7);
    // Two round trips: by then a response has arrived, or else nothing is known.
    assert_eq!(world.paused_for(), secs(1));
    drop(in_flight);
    response_of_ten(&world, calls.remove(0), "9");
    world.clock.advance(secs(1));
    // Of the 9 units, 6 are in flight, and 3 belong to calls that ended without a report.
    assert_eq!(begun_now(&world).len(), 0);
}

#[test]
fn a_response_may_allow_more_than_the_presumed_window() {
    let world = world();
    response_of_ten(&world, world.call(), "9");
    world.clock.advance(secs(6));
    let call = world.call();
    world.clock.advance(Duration::from_millis(500));
    obey(
        &mut { call },
        200,
        &[("x-ratelimit-limit", "30"), ("x-ratelimit-remaining", "29"), ("x-ratelimit-reset", "5")],
    );
    assert_eq!(begun_now(&world).len(), 29);
}

#[test]
fn a_presumed_window_ends_without_a_response_and_is_not_presumed_again() {
    let world = world();
    response_of_ten(&world, world.call(), "9");
    world.clock.advance(secs(6));
    assert_eq!(begun_now(&world).len(), 10);
    world.clock.advance(secs(3));
    assert_eq!(begun_now(&world).len(), 50);
}

/// No window was presumed after responses that took no time, as those of a simulated server: all
/// tasks began at its end.
#[test]
fn the_next_window_is_presumed_after_responses_that_took_no_time() {
    let world = world();
    let reported = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "5")];
    obey(&mut world.call(), 200, &reported);
    world.clock.advance(secs(6));
    assert_eq!(begun_now(&world).len(), 10);
    world.clock.advance(secs(3));
    assert_eq!(begun_now(&world).len(), 50);
}

/// Bug: the whole time of a stream, until its trailers, counted as the time of its response. So the
/// window after its last one was presumed for the longest pause.
#[test]
fn a_window_is_presumed_for_two_trips_however_long_a_stream_lasts() {
    let world = world();
    let mut stream = world.call();
    world.clock.advance(Duration::from_millis(500));
    obey(&mut stream, 200, &[("content-type", "application/grpc")]);
    world.clock.advance(secs(400));
    let reported = [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "5")];
    obey(&mut stream, 200, &[&[("grpc-status", "0")], &reported[..]].concat());
    world.clock.advance(secs(6));
    assert_eq!(begun_now(&world).len(), 10);
    assert_eq!(world.paused_for(), secs(1));
}

/// A call that waited for a long window began the next short one. When the call began, that one was
/// over, and all others began with it.
#[test]
fn the_next_window_is_presumed_when_a_call_begins_and_not_when_it_waits_for_another_window() {
    let world = world();
    let policies = ("ratelimit-policy", "\"a\";q=5;w=2, \"b\";q=40;w=30");
    world.respond(200, &[policies, ("ratelimit", "\"a\";r=4;t=2, \"b\";r=1;t=15")]);
    world.clock.advance(secs(3));
    assert!(world.api.try_acquire_many(2).is_err());
    world.clock.advance(secs(13));
    assert_eq!(begun_now(&world).len(), 5);
}

#[test]
fn a_window_is_presumed_by_a_limit_that_the_server_reported_only() {
    let world = world();
    let mut call = world.call();
    world.clock.advance(Duration::from_millis(500));
    obey(&mut call, 200, &[("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "5")]);
    world.clock.advance(secs(6));
    assert_eq!(begun_now(&world).len(), 50);
    world.api.forget();
    world.clock.advance(secs(6));
    response_of_ten(&world, world.call(), "9");
    world.api.forget();
    world.clock.advance(secs(6));
    assert_eq!(begun_now(&world).len(), 50);
}

#[test]
fn a_response_of_a_window_that_is_over_says_nothing_of_the_present_one() {
    let world = world();
    let mut late = world.call();
    world.respond(200, &[("ratelimit", "\"a\";r=90;t=3600")]);
    obey(&mut late, 200, &[("ratelimit", "\"a\";r=0;t=1")]);
    assert_eq!(world.paused_for(), Duration::ZERO);
    assert!(world.available() > 80);
    // The response counts if its call began since then: the server changed its mind.
    world.respond(200, &[("ratelimit", "\"a\";r=0;t=1")]);
    assert_eq!(world.paused_for(), secs(1));
}

#[test]
fn a_reset_that_is_over_means_that_there_are_units_again() {
    let world = world();
    for reset in ["0", "1792567600"] {
        world.respond(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset), DATE]);
        assert_eq!(world.paused_for(), Duration::ZERO, "{reset}");
        assert!(world.available() > 90);
    }
}

#[test]
fn calls_in_flight_that_a_limit_counts_are_not_used_up() {
    for status in [200, 400, 403, 503] {
        let world = world();
        world.respond(
            status,
            &[("ratelimit-policy", "\"a\";q=4;qu=\"concurrent-requests\""), ("ratelimit", "\"a\";r=0;t=9")],
        );
        assert_eq!((world.paused_for(), world.available()), (Duration::ZERO, 99), "{status}");
    }
}

#[test]
fn calls_granted_together_do_not_exceed_what_the_server_allows() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), 10), clock.clone());
    let api = Obey::with_options(limiter.clone(), options(&clock));
    obey(&mut api.try_acquire().unwrap(), 200, &[("ratelimit", "\"a\";r=2;t=60")]);
    limiter.drain();
    let wait = || {
        let api = api.clone();
        Box::pin(async move { api.acquire().await })
    };
    let mut waits: Vec<_> = (0..5).map(|_| Some(wait())).collect();
    let mut calls = Vec::new();
    let mut poll = || {
        for slot in &mut waits {
            let Some(wait) = slot else { continue };
            if let Poll::Ready(call) = wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                calls.push(call.unwrap());
                *slot = None;
            }
        }
        calls.len()
    };
    poll();
    // All are due, and the limiter grants them at the same time.
    clock.jump(Duration::from_millis(10));
    assert_eq!(poll(), 2);
    clock.advance(secs(59));
    assert_eq!(poll(), 2);
    clock.advance(secs(2));
    assert_eq!(poll(), 5);
}

/// Regression: after three lost races, each in a new window, all calls that still waited began at
/// once.
#[test]
fn calls_that_lose_a_race_in_each_window_still_obey() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100_000), 100), clock.clone());
    let api = Obey::with_options(limiter.clone(), options(&clock));
    let response = |call: &mut Call, left: usize| {
        let left = left.to_string();
        let reported =
            [("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", &*left), ("x-ratelimit-reset", "10")];
        obey(call, 200, &reported);
    };
    let mut first = api.try_acquire().unwrap();
    clock.advance(Duration::from_millis(500));
    response(&mut first, 10);
    limiter.drain();
    let wait = || {
        let api = api.clone();
        Box::pin(async move { api.acquire().await })
    };
    let mut acquired: Vec<_> = (0..30).map(|_| wait()).collect();
    let mut reserved: Vec<_> = (0..30).map(|_| api.reserve(1).unwrap()).collect();
    for window in 0..6 {
        // One late timer grants them all.
        clock.jump(limiter.status().paused_for + Duration::from_millis(10));
        let mut calls = Vec::new();
        take_ready(&mut acquired, &mut calls);
        take_ready(&mut reserved, &mut calls);
        assert_eq!(calls.len(), 10, "window {window}");
        clock.advance(Duration::from_millis(500));
        for (call, left) in calls.iter_mut().zip((0..10).rev()) {
            response(call, left);
        }
    }
    assert!(acquired.is_empty() && reserved.is_empty());
}

/// Regression: a limiter granted such a call, but the server did not allow it. The call was
/// refused, or waited again, and had paid.
#[test]
fn a_call_that_the_server_does_not_allow_has_its_permits_back() {
    type Ask = fn(&Obey, AllRequest<'static>) -> Poll<Result<Call, AllRefusal>>;
    let at_once: Ask = |api, request| Poll::Ready(api.try_acquire_many(request));
    let later: Ask = |api, request| poll(&mut Box::pin(api.acquire_many(request)));
    let blocking: Ask = |api, request| Poll::Ready(api.blocking_acquire_many(request.within(Duration::ZERO)));
    let reserved: Ask = |api, request| poll(&mut api.reserve(request).unwrap());
    let five = AllRequest::new().cost("tokens", 5);
    let up_to = AllRequest::from(Request::up_to(99)).cost("day", 1).cost("calls", 1);
    for ask in [at_once, later, blocking, reserved] {
        for request in [five.clone(), five.clone().priority(1), up_to.clone()] {
            let clock = ManualClock::new();
            let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
            let day = RateLimiter::with_clock(FixedWindow::new(Rate::per_day(1000)), clock.clone());
            let calls = CountingLimit::new(1);
            let all = AllOf::new("tokens", &tokens).with("day", &day).with_counting("calls", &calls);
            let api = Obey::with_options(all, options(&clock));
            let reported = [("x-ratelimit-remaining-tokens", "3"), ("x-ratelimit-reset-tokens", "60s")];
            obey(&mut api.try_acquire().unwrap(), 200, &reported);
            clock.advance(Duration::from_millis(100));
            let left = || (tokens.status().available, day.status().available, calls.available());
            assert_eq!(left(), (13, 999, 1));
            match ask(&api, request) {
                Poll::Ready(Err(refusal)) => {
                    assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
                }
                Poll::Ready(Ok(call)) => panic!("it began: {call:?}"),
                Poll::Pending => {}
            }
            assert_eq!((left(), api.in_flight()), ((13, 999, 1), 0));
        }
    }
}

/// Bug: A call that cost more than was left of a window paused all callers until the reset,
/// although it was refused at once.
#[test]
fn a_refused_call_that_costs_more_than_is_left_pauses_nobody() {
    type Ask = fn(&Obey, AllRequest<'static>) -> Poll<Result<Call, AllRefusal>>;
    let at_once: Ask = |api, request| Poll::Ready(api.try_acquire_many(request));
    let later: Ask = |api, request| poll(&mut Box::pin(api.acquire_many(request)));
    let blocking: Ask = |api, request| Poll::Ready(api.blocking_acquire_many(request));
    let reserved: Ask = |api, request| poll(&mut api.reserve(request).unwrap());
    let five = AllRequest::from(5);
    let soon = five.clone().within(secs(10));
    let asks = [(at_once, five, 60_000), (later, soon.clone(), 50_000), (blocking, soon.clone(), 50_000)];
    for (ask, request, retry_after) in asks.into_iter().chain([(reserved, soon, 50_000)]) {
        let world = world();
        world.respond(200, &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "60")]);
        world.clock.advance(Duration::from_millis(100));
        let refuse = |retry_after: Duration| {
            let Poll::Ready(Err(refusal)) = ask(&world.api, request.clone()) else { panic!("it waits") };
            assert_eq!(refusal, Refusal::Paused { retry_after: retry_after.into() }.into());
            assert_eq!((world.paused_for(), world.api.in_flight()), (Duration::ZERO, 0));
        };
        let retry_after = Duration::from_millis(retry_after - 100);
        refuse(retry_after);
        assert_eq!(world.available(), 13);
        world.clock.advance(retry_after - Duration::from_nanos(1));
        refuse(Duration::from_nanos(1));
        let _calls: Vec<_> = (0..3).map(|_| world.call()).collect();
    }
    // Unless the call may wait so long, or need not ask.
    let world = world();
    world.respond(200, &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "60")]);
    world.clock.advance(Duration::from_millis(100));
    let mut wait = Box::pin(world.api.acquire_many(Request::permits(5).within(secs(61))));
    assert!(poll(&mut wait).is_pending());
    assert_eq!(world.paused_for(), secs(60) - Duration::from_millis(100));
    world.limiter.resume();
    assert!(world.api.try_acquire_many(Request::permits(5).exempt()).is_ok());
}

/// Bug: The second wait of a call has only the rest of its maximum wait. Its refusal told when such
/// a wait would be accepted, which is later than an equal call is.
#[test]
fn the_time_of_a_refusal_is_that_of_an_equal_call() {
    type Wait<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Call, AllRefusal>> + 'a>>;
    let acquire = |api: &Obey, request: Request| -> Wait<'_> {
        let api = api.clone();
        Box::pin(async move { api.acquire_many(request).await })
    };
    let reserve = |api: &Obey, request: Request| -> Wait<'_> { Box::pin(api.reserve(request).unwrap()) };
    for wait in [acquire, reserve] {
        for remaining in ["1", "3"] {
            let clock = ManualClock::new();
            let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5), clock.clone());
            let api = Obey::with_options(limiter.clone(), options(&clock));
            let reported = [("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", "60")];
            obey(&mut api.try_acquire().unwrap(), 200, &reported);
            limiter.drain();
            let request = Request::permits(2).within(secs(10));
            let mut first = wait(&api, request);
            let mut second = wait(&api, request);
            assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
            // The second call has waited for 4 s when it is refused.
            clock.advance(secs(2));
            drop(poll(&mut first));
            clock.advance(secs(2));
            let Poll::Ready(Err(refusal)) = poll(&mut second) else { panic!("it waits") };
            let told = refusal.retry_after().unwrap();
            clock.advance(told - Duration::from_nanos(1));
            assert!(poll(&mut wait(&api, request)).is_ready(), "{remaining}");
            clock.advance(Duration::from_nanos(1));
            assert!(poll(&mut wait(&api, request)).is_pending(), "{remaining}");
        }
    }
}

/// A limiter whose store is away. A share decides each request of this limiter; a refund of this
/// limiter goes to the store.
#[derive(Debug)]
struct Away {
    share: AnyLimiter,
    store: AnyLimiter,
    /// How often it was paused.
    pauses: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Limiter for Away {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.share.try_acquire_many(request.clone()).map(AllPermits::as_degraded)
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let permits = self.share.acquire_many(request.clone());
        AcquireAny::new(async { permits.await.map(AllPermits::as_degraded) })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.share.blocking_acquire_many(request.clone()).map(AllPermits::as_degraded)
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        self.share.reserve(request.clone())
    }

    fn status(&self) -> AllStatus {
        self.share.status()
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.pauses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.share.pause(pause)
    }

    fn resume(&self) -> bool {
        self.share.resume()
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.store.debit(costs.clone())
    }

    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.store.refund(costs.clone())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        self.store.keep_at_most(name, permits)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        self.share.close()
    }

    fn is_closed(&self) -> bool {
        self.share.is_closed()
    }
}

/// Regression: the store got permits back that its share had granted. Other processes could take
/// them beyond the limit.
#[test]
fn a_store_gets_no_permits_back_that_it_did_not_grant() {
    type Ask = fn(&Obey) -> Poll<Result<Call, AllRefusal>>;
    let at_once: Ask = |api| Poll::Ready(api.try_acquire());
    let later: Ask = |api| poll(&mut Box::pin(api.acquire()));
    let blocking: Ask = |api| {
        let request = AllRequest::new().within(Duration::ZERO);
        Poll::Ready(api.blocking_acquire_many(request))
    };
    let reserved: Ask = |api| poll(&mut api.reserve(1).unwrap());
    for ask in [at_once, later, blocking, reserved] {
        let clock = ManualClock::new();
        let window = || RateLimiter::with_clock(FixedWindow::new(Rate::per_hour(100)), clock.clone());
        let (share, store) = (window(), window());
        store.drain();
        let away =
            Away { share: share.into(), store: store.clone().into(), pauses: std::sync::Arc::default() };
        let api = Obey::with_options(AnyLimiter::new(away), options(&clock));
        let reported = [("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "60")];
        obey(&mut api.try_acquire().unwrap(), 200, &reported);
        let _calls: Vec<_> = (0..3).map(|_| api.try_acquire().unwrap()).collect();
        // The share grants the call, and the server does not allow it.
        api.limiter().resume();
        assert!(!matches!(ask(&api), Poll::Ready(Ok(_))));
        assert_eq!(store.status().available, 0);
    }
}

/// Regression: each try could wait for the whole maximum wait of the call, and the call reported
/// only the wait of its last try.
#[test]
fn the_longest_wait_is_that_of_all_tries() {
    type Wait<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Call, AllRefusal>> + 'a>>;
    let acquire = |api: &Obey, request: Request| -> Wait<'_> {
        let api = api.clone();
        Box::pin(async move { api.acquire_many(request).await })
    };
    let reserve = |api: &Obey, request: Request| -> Wait<'_> { Box::pin(api.reserve(request).unwrap()) };
    for wait in [acquire, reserve] {
        for (within, is_granted) in [(2499, false), (2500, true)] {
            let clock = ManualClock::new();
            let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(2), 10), clock.clone());
            let api = Obey::with_options(limiter.clone(), options(&clock));
            let reported = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "2")];
            obey(&mut api.try_acquire().unwrap(), 200, &reported);
            limiter.drain();
            let mut first = wait(&api, Request::permits(1));
            let mut second = wait(&api, Request::permits(1).within(Duration::from_millis(within)));
            assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
            // The first call takes the only unit of the window. The second call has waited for 1.5
            // s, and has to wait for the rest of the window and an interval.
            clock.jump(Duration::from_millis(1500));
            assert!(poll(&mut first).is_ready());
            let Poll::Ready(refused) = poll(&mut second) else {
                assert!(is_granted);
                clock.advance(secs(1));
                let Poll::Ready(call) = poll(&mut second) else { panic!("it waits") };
                assert_eq!(call.unwrap().waited(), Duration::from_millis(2500));
                continue;
            };
            assert!(!is_granted);
            // An equal call would be accepted now.
            assert_eq!(refused.map(drop).unwrap_err().retry_after(), Some(Duration::ZERO));
        }
    }
}

/// Regression: the headers of a response are read while its call is neither in flight nor lost.
/// Then another response, which may not have counted that call, allowed one call too many.
#[test]
fn a_call_is_in_flight_until_its_response_is_learnt() {
    let clock = ManualClock::new();
    let other = std::sync::Arc::new(std::sync::Mutex::new(None::<Call>));
    let to_obey = other.clone();
    // A function that runs while a response is read.
    let meanwhile = move |_: StatusCode, _: &HeaderMap| {
        let other = to_obey.lock().unwrap().take();
        if let Some(mut other) = other {
            obey(&mut other, 200, &[("x-ratelimit-remaining", "30")]);
        }
        false
    };
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let api = Obey::with_options(limiter.clone(), options(&clock).refusal(meanwhile));
    let mut call = api.try_acquire().unwrap();
    *other.lock().unwrap() = Some(api.try_acquire().unwrap());
    obey(&mut call, 200, &[]);
    assert_eq!((limiter.status().available, api.in_flight()), (29, 0));
}

/// Polls the waits once, and moves out the calls of the waits that are over.
fn take_ready(
    waits: &mut Vec<impl Future<Output = Result<Call, AllRefusal>> + Unpin>,
    calls: &mut Vec<Call>,
) {
    waits.retain_mut(|wait| match poll(wait) {
        Poll::Ready(call) => {
            calls.push(call.unwrap());
            false
        }
        Poll::Pending => true,
    });
}

/// No window of the server has room for the call, however often the call waits for the next window.
#[test]
fn a_call_that_costs_more_than_any_window_goes_after_some_windows() {
    for limit in [Some(("x-ratelimit-limit", "10")), None] {
        let world = world();
        let response = |mut call: Call| {
            world.clock.advance(Duration::from_millis(500));
            let reported = [("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "5")];
            obey(&mut call, 200, &reported.into_iter().chain(limit).collect::<Vec<_>>());
        };
        response(world.call());
        let mut large = Box::pin(world.api.acquire_many(50));
        let goes = (0..10).any(|_| {
            world.clock.advance(world.limiter.status().next_in);
            // Another call is faster, and its response reports the window.
            response(world.api.begin(1));
            poll(&mut large).is_ready()
        });
        assert!(goes, "{limit:?}");
    }
}

#[test]
fn a_limiter_that_does_not_pause_is_not_asked_for_ever() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=0;t=60")]);
    assert!(world.api.try_acquire().is_err());
    // In shadow mode the limiter grants all requests.
    world.limiter.set_shadow(true);
    assert!(world.api.try_acquire().is_ok());
    assert!(world.api.blocking_acquire_many(1).is_ok());
}

#[test]
fn threads_leave_nothing_in_flight() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(Unlimited, clock.clone());
    let api = Obey::with_options(limiter, options(&clock));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let api = &api;
            scope.spawn(move || {
                for i in 0..500 {
                    let mut call = api.begin(1);
                    match (i + thread) % 3 {
                        0 => drop(call),
                        1 => drop(obey(&mut call, 200, &[("ratelimit", "\"a\";r=5;t=1")])),
                        _ => drop(obey(&mut call, 429, &[("retry-after", "1")])),
                    }
                }
            });
        }
    });
    assert_eq!(api.in_flight(), 0);
}

// Times.

#[test]
fn absolute_timestamps_count_from_the_date_of_the_response() {
    let world = world();
    let pairs = [("retry-after", "Wed, 21 Oct 2026 07:29:00 GMT"), DATE];
    assert_eq!(world.respond(429, &pairs).paused_for, Some(secs(60)));
}

#[test]
fn an_absolute_timestamp_without_a_date_is_ignored() {
    let world = world();
    let refused = world.respond(429, &[("retry-after", "Wed, 21 Oct 2026 07:29:00 GMT")]);
    // The back-off after a refusal without a time.
    assert_eq!(refused.paused_for, Some(secs(1)));
    world.come_back();
    let pairs = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567740")];
    assert_eq!(world.respond(200, &pairs).paused_for, None);
}

#[test]
fn times_that_are_no_times_are_ignored() {
    for wait in
        ["-1", "-5", "soon", "", "1e9", "NaN", "99999999999999999999", "Wed, 21 Oct 2020 07:28:00 GMT"]
    {
        let world = world();
        let obeyed = world.respond(429, &[("retry-after", wait), DATE]);
        assert_eq!(obeyed.paused_for, Some(secs(1)), "{wait}");
        assert_eq!(obeyed.asked_for, None, "{wait}");
    }
}

// Responses that report nothing.

#[test]
fn cached_responses_and_redirects_are_ignored() {
    let reported = ("ratelimit", "\"a\";r=0;t=30");
    let world = world();
    for (status, pair) in [(200, ("age", "1")), (301, DATE), (302, DATE), (307, DATE), (308, DATE)] {
        let obeyed = world.respond(status, &[reported, pair]);
        assert_eq!((obeyed.paused_for, world.paused_for()), (None, Duration::ZERO), "{status}");
        assert!(world.available() > 90);
    }
    world.respond(304, &[reported]);
    assert_eq!(world.paused_for(), secs(30));
}

#[test]
fn a_dropped_call_leaves_no_trace() {
    let world = world();
    for _ in 0..50 {
        drop(world.call());
    }
    assert_eq!(world.api.in_flight(), 0);
    world.respond(200, &[("x-ratelimit-remaining", "30")]);
    assert_eq!(world.available(), 30);
}

#[test]
fn reported_limits_change_no_rate() {
    let world = world();
    world.respond(200, &[("ratelimit-policy", "\"a\";q=1;w=3600"), ("ratelimit", "\"a\";r=90;t=1")]);
    drop((0..50).map(|_| world.call()).collect::<Vec<_>>());
    world.clock.advance(secs(1));
    assert_eq!(world.available(), 100);
}

#[test]
fn forget_ends_what_the_server_reported() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=0;t=300")]);
    assert!(world.api.try_acquire().is_err());
    world.api.forget();
    world.clock.advance(Duration::from_millis(10));
    assert!(world.api.try_acquire().is_ok());
}

// Rates.

fn paced(set: impl FnOnce(Pace) -> Pace) -> World {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let to_set = limiter.clone();
    let pace = Pace::between(Rate::per_second(10), Rate::per_second(100), move |rate| to_set.set_rate(rate));
    let api = Obey::with_options(limiter.clone(), options(&clock).pace(set(pace)));
    World { clock, limiter, api }
}

impl World {
    fn rate(&self) -> f64 {
        self.limiter.status().rate.as_per_second()
    }
}

#[test]
fn a_pace_that_neither_learns_nor_adapts_changes_nothing() {
    let world = paced(|pace| pace);
    world.respond(200, &[("ratelimit-policy", "\"a\";q=20;w=1"), ("ratelimit", "\"a\";r=9;t=1")]);
    world.respond(429, &[]);
    assert_eq!(world.rate(), 100.0);
}

#[test]
fn a_learned_rate_is_between_floor_and_ceiling_and_rises_slowly() {
    let world = paced(Pace::learn);
    let report = |q: &str| {
        world.respond(200, &[("ratelimit-policy", &format!("\"a\";q={q};w=2"))]);
        world.rate()
    };
    assert_eq!(report("1000"), 100.0);
    assert_eq!(report("100"), 50.0);
    assert_eq!(report("1"), 10.0);
    // A higher rate is approached by a tenth each second.
    assert_eq!(report("1000"), 10.0);
    world.clock.advance(secs(100));
    assert_eq!(report("1000"), 11.0);
    assert_eq!(report("1000"), 11.0);
    for _ in 0..30 {
        world.clock.advance(secs(1));
        report("1000");
    }
    assert_eq!(world.limiter.status().rate, Rate::per_second(100));
}

#[test]
fn a_rate_is_not_learned_from_redirects_caches_and_other_units() {
    let world = paced(Pace::learn);
    let policy = ("ratelimit-policy", "\"a\";q=20;w=1");
    world.respond(302, &[policy]);
    world.respond(200, &[policy, ("age", "9")]);
    world.respond(200, &[("ratelimit-policy", "\"a\";q=20;w=1;qu=\"content-bytes\"")]);
    assert_eq!(world.rate(), 100.0);
}

#[test]
fn a_server_that_reports_nothing_is_adapted_to() {
    let world = paced(Pace::adapt);
    let mut calls: Vec<_> = (0..5).map(|_| world.call()).collect();
    for call in &mut calls {
        obey(call, 429, &[]);
    }
    assert_eq!(world.rate(), 70.0);
    for _ in 0..10 {
        world.come_back();
        world.respond(429, &[]);
    }
    assert_eq!(world.rate(), 10.0);
    world.clock.advance(secs(1000));
    // The rate rises by 90/s in a minute; more than a second without calls counts as one second.
    world.respond(200, &[]);
    assert!((world.rate() - 11.5).abs() < 1e-9, "{}", world.rate());
    for _ in 0..60 {
        world.clock.advance(secs(1));
        world.respond(200, &[]);
    }
    assert_eq!(world.limiter.status().rate, Rate::per_second(100));
}

#[test]
fn the_rate_that_is_set_last_is_the_present_one_also_where_setting_calls_back() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let set = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let api = std::sync::Arc::new(std::sync::OnceLock::<Obey>::new());
    let (log, inner) = (set.clone(), api.clone());
    let pace = Pace::between(Rate::per_second(1), Rate::per_second(100), move |rate| {
        let first = log.lock().unwrap().is_empty();
        if first {
            // The call is refused while the rate is being set.
            obey(&mut inner.get().unwrap().begin(1), 429, &[]);
        }
        log.lock().unwrap().push(rate.as_per_second());
        assert!(!first, "it may panic");
    });
    api.set(Obey::with_options(limiter, options(&clock).pace(pace.adapt()))).unwrap();
    let refuse = || obey(&mut api.get().unwrap().begin(1), 429, &[]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(refuse)).is_err());
    refuse();
    let set = set.lock().unwrap();
    assert_eq!(set.len(), 2);
    assert!((set[1] - 34.3).abs() < 1e-9, "{set:?}");
}

// Members, keys.

#[test]
fn a_limit_lowers_the_member_of_its_name_or_unit_only() {
    let clock = ManualClock::new();
    let limiter = |burst: u32| {
        RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(burst.into()), burst), clock.clone())
    };
    let (requests, tokens) = (limiter(100), limiter(10_000));
    let all = AllOf::new("requests", &requests).with("tokens", &tokens);
    let api = Obey::with_options(all, options(&clock));
    let mut call = api.try_acquire_many([("tokens", 850)]).unwrap();
    let mut other = api.try_acquire_many([("tokens", 150)]).unwrap();
    assert_eq!(tokens.status().available, 9000);
    obey(&mut call, 200, &[("x-ratelimit-remaining-tokens", "500"), ("x-ratelimit-reset-tokens", "6m0s")]);
    assert_eq!(requests.status().available, 98);
    // 150 of the other call are in flight.
    assert_eq!(tokens.status().available, 350);
    obey(&mut other, 200, &[("x-ratelimit-remaining-requests", "7")]);
    // The response to the first call reported nothing about requests, so the server may not have
    // counted that call yet.
    assert_eq!((requests.status().available, tokens.status().available), (6, 350));

    // This is more than the server allows: the call waits for the reset.
    clock.advance(secs(60));
    assert!(tokens.status().available > 351);
    let refusal = api.try_acquire_many([("tokens", 351)]).unwrap_err();
    assert!(refusal.retry_after() >= Some(secs(300)), "{refusal:?}");
}

#[test]
fn names_of_limits_are_mapped_to_members() {
    let clock = ManualClock::new();
    let limiter = |burst: u32| {
        RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(burst.into()), burst), clock.clone())
    };
    let (calls, input) = (limiter(100), limiter(10_000));
    let all = AllOf::new("calls", &calls).with("in", &input);
    let options = options(&clock).member("Input-Tokens", "in").member("requests", "calls");
    let api = Obey::with_options(all, options);
    let mut call = api.try_acquire_many(AllRequest::new().cost("in", 100)).unwrap();
    let pairs = [
        ("anthropic-ratelimit-input-tokens-remaining", "500"),
        ("anthropic-ratelimit-output-tokens-remaining", "3"),
        ("anthropic-ratelimit-requests-remaining", "42"),
    ];
    obey(&mut call, 200, &pairs);
    assert_eq!((calls.status().available, input.status().available), (42, 500));
}

#[test]
fn a_key_of_several_limits_is_obeyed_by_its_calls_alone() {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_minute(60), 60);
    let users: KeyedRateLimiter<String, _, _> =
        KeyedRateLimiter::with_clock(policy.clone(), 10, clock.clone());
    let everyone = RateLimiter::with_clock(policy, clock.clone());
    let limits = KeyedAllOf::<str, _>::new("user", &users).with("everyone", &everyone);
    let api = |user| Obey::with_options(limits.limiter(user).unwrap(), options(&clock));
    let (alice, bob) = (api("alice"), api("bob"));
    let mut call = alice.try_acquire_many([("everyone", 1)]).unwrap();
    obey(&mut call, 429, &[("retry-after", "30")]);
    // The first call begins an interval after the pause.
    assert_eq!(alice.try_acquire().unwrap_err().retry_after(), Some(secs(31)));
    assert!(bob.try_acquire().is_ok());
    // The limits of the key are the same for every other call for it.
    assert!(limits.try_acquire("alice").is_err());
    clock.advance(secs(31));
    assert!(limits.try_acquire("alice").is_ok());
}

#[test]
fn a_call_in_flight_counts_as_many_permits_as_it_got() {
    let clock = ManualClock::new();
    let bucket =
        |burst| RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(60), burst), clock.clone());
    let (calls, tokens) = (bucket(100), bucket(1000));
    let all = AllOf::new("calls", &calls).with("tokens", &tokens);
    let api = Obey::with_options(all, options(&clock).member("tokens", "tokens"));
    let mut first = api.try_acquire_many([("tokens", 0)]).unwrap();
    let up_to = AllRequest::from(Request::up_to(4096)).cost("calls", 1);
    let _in_flight = api.try_acquire_many(up_to).unwrap();
    assert_eq!(tokens.status().available, 0);
    clock.advance(secs(900));
    obey(&mut first, 200, &[("x-ratelimit-remaining-tokens", "1100")]);
    // The server may not have counted the thousand tokens in flight yet.
    assert_eq!(tokens.status().available, 100);
}

#[test]
fn a_limit_of_tokens_does_not_lower_requests_but_pauses_them_when_nothing_is_left() {
    let world = world();
    world.respond(200, &[("x-ratelimit-remaining-tokens", "5"), ("x-ratelimit-reset-tokens", "6m0s")]);
    assert_eq!((world.available(), world.paused_for()), (99, Duration::ZERO));
    world.respond(200, &[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")]);
    assert_eq!(world.paused_for(), secs(360));
}

#[test]
fn an_unnamed_limit_of_several_members_counts_calls() {
    let clock = ManualClock::new();
    let second = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 10), clock.clone());
    let minute = RateLimiter::with_clock(FixedWindow::new(Rate::per_minute(100)), clock.clone());
    let all = AllOf::new("per second", &second).with("per minute", &minute);
    let api = Obey::with_options(all, options(&clock));
    let response = [("x-ratelimit-remaining", "2"), ("x-ratelimit-reset", "30")];
    obey(&mut api.try_acquire().unwrap(), 200, &response);
    assert_eq!((second.status().available, minute.status().available), (9, 99));
    drop((api.try_acquire().unwrap(), api.try_acquire().unwrap()));
    assert!(matches!(api.try_acquire(), Err(AllRefusal::Member { .. } | AllRefusal::Queue { .. })));
    assert!(api.limiter().status().paused_for == secs(30));
}

#[test]
fn one_key_obeys_and_the_others_go_on() {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 10);
    let hosts = KeyedRateLimiter::<&str, _, _>::with_clock(policy, 100, clock.clone());
    let host = |name| Obey::with_options(AnyLimiter::new(OfKey::new(&hosts, name)), options(&clock));
    let (a, b) = (host("a.example"), host("b.example"));
    obey(&mut a.try_acquire().unwrap(), 429, &[("retry-after", "30")]);
    assert!(a.try_acquire().is_err());
    assert!(b.try_acquire().is_ok());
}

#[test]
fn a_call_that_costs_more_than_any_window_allows_goes_after_the_reset() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=20;t=60")]);
    assert!(world.api.try_acquire_many(50).is_err());
    world.clock.advance(secs(62));
    assert!(world.api.try_acquire_many(50).is_ok());
}

#[test]
fn a_call_with_permits_of_its_own_counts_as_well() {
    let world = world();
    world.respond(200, &[("ratelimit", "\"a\";r=2;t=60")]);
    let calls = [world.api.begin(1), world.api.begin(1), world.api.begin(1)];
    assert_eq!(world.api.in_flight(), 3);
    assert_eq!(world.paused_for(), secs(60));
    drop(calls);
}

#[test]
fn a_call_that_costs_nothing_is_obeyed() {
    let World { limiter, api, .. } = world();
    limiter.drain();
    let mut free = api.try_acquire_many(0).unwrap();
    let reserved = begun(&mut api.reserve(0).unwrap());
    let Poll::Ready(waited) = poll(&mut Box::pin(api.acquire_many(0))) else { panic!("it waits") };
    let blocked = api.blocking_acquire_many(0).unwrap();
    assert_eq!((api.in_flight(), limiter.status().available), (4, 0));
    obey(&mut free, 429, &[("retry-after", "30")]);
    assert_eq!(limiter.status().paused_for, secs(30));
    drop((waited.unwrap(), blocked));
    // Its real cost is charged: after the pause, 50 permits more are due.
    let next_in = limiter.status().next_in;
    reserved.settle(50).unwrap();
    assert_eq!(limiter.status().next_in, next_in + Duration::from_millis(500));
    assert_eq!(api.in_flight(), 0);
}

#[test]
fn a_closed_limiter_does_not_pause() {
    let world = world();
    let mut call = world.call();
    world.limiter.close();
    let obeyed = obey(&mut call, 429, &[("retry-after", "30")]);
    assert_eq!((obeyed.paused_for, obeyed.asked_for), (None, Some(secs(30))));
    assert_eq!(obeyed.error, Some(Refusal::Closed.into()));
}

// Scopes.

fn scopes(clock: &ManualClock, most: usize) -> Scopes {
    let clock = clock.clone();
    Scopes::new(most, move |_| {
        let policy = TokenBucket::new(Rate::per_second(10), 10);
        Obey::with_options(RateLimiter::with_clock(policy, clock.clone()), options(&clock))
    })
}

fn by_bucket(clock: &ManualClock) -> Scopes {
    scopes(clock, 100).by_bucket(|route, headers| {
        let bucket = headers.get("x-ratelimit-bucket")?.to_str().ok()?;
        Some(format!("{bucket} {}", route.split('/').nth(2)?))
    })
}

fn paused_for(obey: &Obey) -> Duration {
    obey.limiter().status().paused_for
}

#[test]
fn each_scope_obeys_by_itself() {
    let hosts = scopes(&ManualClock::new(), 100);
    obey(&mut hosts.of("a").try_acquire().unwrap(), 429, &[("retry-after", "30")]);
    assert_eq!((paused_for(&hosts.of("a")), paused_for(&hosts.of("b"))), (secs(30), Duration::ZERO));
}

#[test]
fn a_route_moves_to_its_bucket_when_it_is_learnt() {
    let routes = by_bucket(&ManualClock::new());
    let (a, b) = ("GET /channels/7/messages", "GET /channels/7/pins");
    let (mut first, mut second) = (routes.of(a).try_acquire().unwrap(), routes.of(b).try_acquire().unwrap());
    obey(&mut first, 200, &[("x-ratelimit-bucket", "x")]);
    // The second route joins the bucket of the first, and its refusal pauses both.
    obey(&mut second, 429, &[("x-ratelimit-bucket", "x"), ("retry-after", "30")]);
    assert_eq!((paused_for(&routes.of(a)), paused_for(&routes.of(b))), (secs(30), secs(30)));
    assert_eq!((routes.of(a).in_flight(), routes.of(b).in_flight()), (0, 0));

    // Another channel has its own bucket.
    let c = "GET /channels/8/messages";
    let mut third = routes.of(c).try_acquire().unwrap();
    obey(&mut third, 200, &[("x-ratelimit-bucket", "x")]);
    assert_eq!(paused_for(&routes.of(c)), Duration::ZERO);
}

/// Regression: each response to a call that began at another limiter took a unit of the bucket.
#[test]
fn a_call_takes_one_unit_of_a_bucket_however_many_responses_it_has() {
    let routes = by_bucket(&ManualClock::new());
    let (a, b) = ("GET /channels/7/messages", "GET /channels/7/pins");
    let (mut first, mut second) = (routes.of(a).try_acquire().unwrap(), routes.of(b).try_acquire().unwrap());
    let bucket = ("x-ratelimit-bucket", "x");
    obey(&mut first, 200, &[bucket, ("x-ratelimit-remaining", "5"), ("x-ratelimit-reset-after", "60")]);
    for _ in 0..3 {
        obey(&mut second, 200, &[bucket]);
    }
    let calls: Vec<_> = (0..9).map_while(|_| routes.of(a).try_acquire().ok()).collect();
    assert_eq!(calls.len(), 4);
}

/// The bucket is known, and calls of the second route wait at the limiter that the route leaves.
#[test]
fn calls_that_wait_while_their_route_moves_obey_the_bucket() {
    let clock = ManualClock::new();
    let routes = by_bucket(&clock);
    let (a, b) = ("GET /channels/7/messages", "GET /channels/7/pins");
    obey(&mut routes.of(a).try_acquire().unwrap(), 200, &[("x-ratelimit-bucket", "x")]);
    let left = routes.of(b);
    let mut call = left.try_acquire_many(10).unwrap();
    let mut waiting = Box::pin(left.acquire());
    let mut reserved = left.reserve(1).unwrap();
    assert!(poll(&mut waiting).is_pending() && poll(&mut reserved).is_pending());
    obey(&mut call, 429, &[("x-ratelimit-bucket", "x"), ("retry-after", "30")]);
    assert_eq!(paused_for(&routes.of(b)), secs(30));
    for second in 0..30 {
        assert!(poll(&mut waiting).is_pending() && poll(&mut reserved).is_pending(), "{second} s");
        // A handle from before the move.
        assert!(left.try_acquire().is_err(), "{second} s");
        // Its calls take nothing from the limiter that the route left.
        let available = left.limiter().status().members[0].1.available;
        assert_eq!(available, if second == 0 { 0 } else { 10 }, "{second} s");
        clock.advance(secs(1));
    }
    // The calls are one interval apart, as after each pause.
    clock.advance(secs(1));
    assert!(poll(&mut waiting).is_ready());
    assert!(poll(&mut reserved).is_ready());
    assert_eq!(routes.of(a).in_flight(), 0);
}

#[test]
fn a_global_refusal_pauses_all_scopes_and_later_ones() {
    for header in [("x-ratelimit-scope", "global"), ("x-ratelimit-global", "true")] {
        let clock = ManualClock::new();
        let routes = by_bucket(&clock);
        let (mut call, other) = (routes.of("GET /a/1").try_acquire().unwrap(), routes.of("GET /b/1"));
        obey(&mut call, 429, &[("x-ratelimit-bucket", "x"), header, ("retry-after", "30")]);
        assert_eq!(paused_for(&other), secs(30));
        clock.advance(secs(10));
        assert_eq!(paused_for(&routes.of("GET /c/1")), secs(20));
        clock.advance(secs(20));
        assert_eq!(paused_for(&routes.of("GET /d/1")), Duration::ZERO);
    }
}

/// Bug: a global refusal that a program read from a body paused only the scope of its call.
#[test]
fn a_global_refusal_that_was_read_from_a_body_pauses_all_scopes() {
    let hosts = scopes(&ManualClock::new(), 100);
    let (mut call, other) = (hosts.of("a").try_acquire().unwrap(), hosts.of("b"));
    let mut limits = ResponseLimits::default();
    limits.refused = true;
    limits.scope = Some("global".to_owned());
    limits.retry_after = Some(When::In(secs(30)));
    call.obey_limits(limits);
    assert_eq!((paused_for(&hosts.of("a")), paused_for(&other)), (secs(30), secs(30)));
    assert_eq!(paused_for(&hosts.of("c")), secs(30));
}

/// Bug: a global refusal paused no other scope if the limiter of its call did not pause, because it
/// was closed.
#[test]
fn a_global_refusal_pauses_the_other_scopes_of_a_closed_limiter() {
    let hosts = scopes(&ManualClock::new(), 100);
    let (mut call, other) = (hosts.of("a").try_acquire().unwrap(), hosts.of("b"));
    hosts.of("a").limiter().close().unwrap();
    let obeyed = obey(&mut call, 429, &[("x-ratelimit-scope", "global"), ("retry-after", "30")]);
    assert_eq!((obeyed.paused_for, paused_for(&other)), (None, secs(30)));
}

/// Regression: the default clock of each limiter counts from its creation. The ends of two pauses
/// on different clocks were compared directly, so a pause that was over kept a later scope out of a
/// pause that was not over.
#[test]
fn a_global_refusal_pauses_later_scopes_whatever_their_clocks_count_from() {
    let clocks = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let made = clocks.clone();
    let hosts = Scopes::new(100, move |_| {
        let clock = ManualClock::new();
        made.lock().unwrap().push(clock.clone());
        let policy = TokenBucket::new(Rate::per_second(10), 10);
        Obey::with_options(RateLimiter::with_clock(policy, clock.clone()), options(&clock))
    });
    let advance = |span| {
        clocks.lock().unwrap().iter().for_each(|clock: &ManualClock| clock.advance(span));
    };
    let refuse = |host, wait| {
        let mut call = hosts.of(host).begin(1);
        obey(&mut call, 429, &[("x-ratelimit-scope", "global"), ("retry-after", wait)]);
    };
    drop(hosts.of("old"));
    advance(secs(1000));
    refuse("old", "60");
    advance(secs(1000));
    refuse("young", "60");
    advance(secs(1));
    assert_eq!(paused_for(&hosts.of("a")), secs(59));
    // A shorter pause on the older clock.
    refuse("old", "5");
    assert_eq!(paused_for(&hosts.of("b")), secs(59));
    // A longer pause.
    refuse("old", "90");
    assert_eq!(paused_for(&hosts.of("c")), secs(90));
    advance(secs(90));
    assert_eq!(paused_for(&hosts.of("d")), Duration::ZERO);
    assert_eq!(hosts.of("d").limiter().status().members[0].1.available, 10);
}

#[test]
fn a_shared_or_user_scope_pauses_its_own_scope_only() {
    let routes = by_bucket(&ManualClock::new());
    let mut call = routes.of("GET /a/1").try_acquire().unwrap();
    obey(&mut call, 429, &[("x-ratelimit-scope", "shared"), ("retry-after", "30")]);
    assert_eq!(paused_for(&routes.of("GET /b/1")), Duration::ZERO);
}

#[test]
fn scopes_are_bounded_and_a_scope_with_calls_in_flight_stays() {
    let hosts = scopes(&ManualClock::new(), 100);
    let call = hosts.of("busy").try_acquire().unwrap();
    for host in 0..10_000 {
        let _ = hosts.of(&host.to_string());
        assert!(hosts.len() <= 100);
    }
    assert_eq!(hosts.of("busy").in_flight(), 1);
    drop(call);
    let none = scopes(&ManualClock::new(), 0);
    assert!(none.of("a").try_acquire().is_ok());
}

/// Regression: a scope that a server paused has no calls in flight and is not requested. So it was
/// forgotten before all others, and its next request got a new limiter during the pause.
#[test]
fn a_scope_is_forgotten_only_after_its_pause() {
    let clock = ManualClock::new();
    let hosts = scopes(&clock, 100);
    obey(&mut hosts.of("paused").try_acquire().unwrap(), 429, &[("retry-after", "300")]);
    let ask_for = |hosts_to_ask: std::ops::Range<i32>| {
        hosts_to_ask.for_each(|host| drop(hosts.of(&host.to_string())));
    };
    ask_for(0..1000);
    assert_eq!(paused_for(&hosts.of("paused")), secs(300));
    clock.advance(secs(300));
    let before = hosts.of("paused");
    before.limiter().debit(10).unwrap();
    ask_for(1000..2000);
    assert_eq!(hosts.of("paused").limiter().status().members[0].1.available, 10, "it is a new one");
    // A pause that was ended early.
    obey(&mut hosts.of("paused").try_acquire().unwrap(), 429, &[("retry-after", "300")]);
    hosts.of("paused").forget();
    ask_for(2000..3000);
    assert_eq!(hosts.of("paused").limiter().status().members[0].1.available, 10, "it is a new one");
}

/// Bug: without buckets, a handle to a forgotten scope kept its own limiter. So the scope had two
/// limiters, and the refusal of a call at one did not pause the other.
#[test]
fn a_handle_follows_a_scope_that_was_forgotten() {
    let hosts = scopes(&ManualClock::new(), 1);
    let kept = hosts.of("a");
    let mut call = kept.try_acquire().unwrap();
    let busy = hosts.of("b").try_acquire().unwrap();
    obey(&mut hosts.of("a").begin(1), 429, &[("retry-after", "30")]);
    assert!(kept.try_acquire().is_err());
    // So does a call in flight.
    obey(&mut call, 429, &[("retry-after", "60")]);
    assert_eq!((paused_for(&hosts.of("a")), hosts.of("a").in_flight()), (secs(60), 0));
    drop(busy);
}

// Reservations.

fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn begun(reservation: &mut CallReservation<'_>) -> Call {
    match poll(reservation) {
        Poll::Ready(call) => call.unwrap(),
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn a_reserved_call_is_settled_with_what_it_used() {
    let World { limiter, api, .. } = world();
    let mut reservation = api.reserve(80).unwrap();
    assert_eq!((reservation.due_in(), api.in_flight()), (Duration::ZERO, 0));
    let mut call = begun(&mut reservation);
    assert_eq!((api.in_flight(), limiter.status().available), (1, 20));
    obey(&mut call, 200, &[]);
    assert_eq!(api.in_flight(), 0);
    call.settle(30).unwrap();
    assert_eq!(limiter.status().available, 70);

    // It used more, and it reported nothing.
    begun(&mut api.reserve(10).unwrap()).settle(20).unwrap();
    assert_eq!(limiter.status().available, 50);
    drop(begun(&mut api.reserve(10).unwrap()));
    assert_eq!((api.in_flight(), limiter.status().available), (0, 40));
    begun(&mut api.reserve(10).unwrap()).settle_unused();
    assert_eq!((api.in_flight(), limiter.status().available), (0, 40));
    assert!(begun(&mut api.reserve(10).unwrap()).settle([("tokens", 1)]).is_err());
    // A call that was acquired has used its permits.
    api.try_acquire_many(10).unwrap().settle(0).unwrap();
    assert_eq!((api.in_flight(), limiter.status().available), (0, 20));
}

#[test]
fn a_reservation_that_is_dropped_leaves_no_trace() {
    let World { limiter, api, .. } = world();
    drop(api.reserve(80).unwrap());
    assert_eq!((api.in_flight(), limiter.status().available), (0, 100));
    limiter.drain();
    let mut reservation = api.reserve(50).unwrap();
    assert_eq!(reservation.due_in(), Duration::from_millis(500));
    assert!(poll(&mut reservation).is_pending());
    drop(reservation);
    assert_eq!(limiter.status().waiting, 0);
    limiter.close();
    assert!(api.reserve(1).is_err());
}

/// The permits were available, but another call took the last unit that the server allows.
#[test]
fn a_reserved_call_waits_until_the_server_allows_it() {
    let World { clock, limiter, api } = world();
    let mut first = api.try_acquire().unwrap();
    let mut reservation = api.reserve(1).unwrap();
    obey(
        &mut first,
        200,
        &[("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "5")],
    );
    let _last = api.try_acquire().unwrap();
    assert!(poll(&mut reservation).is_pending());
    assert_eq!(limiter.status().waiting, 1);
    assert!(reservation.due_in() >= secs(5));
    clock.advance(reservation.due_in());
    let call = begun(&mut reservation);
    assert_eq!(api.in_flight(), 2);
    drop(call);
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_reservation_is_not_polled_again() {
    let World { api, .. } = world();
    let mut reservation = api.reserve(1).unwrap();
    let _call = begun(&mut reservation);
    let _ = poll(&mut reservation);
}

#[test]
fn a_limit_of_calls_in_flight_alone_obeys() {
    let (clock, calls) = (ManualClock::new(), CountingLimit::new(2));
    let api = Obey::with_options(calls.clone(), options(&clock));
    let mut first = api.try_acquire().unwrap();
    let second = begun(&mut api.reserve(1).unwrap());
    assert_eq!(calls.available(), 0);
    drop(second);
    obey(&mut first, 429, &[("retry-after", "30")]);
    assert_eq!(calls.available(), 1, "the body is still to come");
    let refusal = api.try_acquire().map(drop).unwrap_err().refusal();
    assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
}

// Regressions: buckets, paces, and wakers that panic.

/// Each call that moved to its bucket counted as one that began after the last refusal.
#[test]
fn calls_that_move_to_their_bucket_are_refused_together() {
    let routes = by_bucket(&ManualClock::new());
    let routes_of = |n: usize| routes.of(&format!("GET /channels/7/{n}"));
    let mut calls: Vec<_> = (0..10).map(|n| routes_of(n).try_acquire().unwrap()).collect();
    for call in &mut calls {
        obey(call, 429, &[("x-ratelimit-bucket", "b")]);
    }
    assert_eq!(paused_for(&routes_of(0)), secs(1));
}

/// Bug: the clocks of two limiters can count from different times, as the default clocks do. The
/// age of a call that moved was the difference of their times. So its refusal looked older than the
/// last refusal of the bucket, and did not pause.
#[test]
fn a_call_that_moves_is_as_old_as_the_clock_of_its_old_limiter_says() {
    let (routes, pass) = on_clocks_of_their_own();
    let refuse = |route| obey(&mut routes.of(route).begin(1), 429, &[("x-ratelimit-bucket", "x")]).paused_for;
    assert_eq!(refuse("old"), Some(secs(1)));
    pass(100_000);
    assert_eq!(refuse("young"), Some(secs(2)));
}

/// Bug: a call that was older than the clock of its bucket's limiter began when that clock began.
/// So its response certainly began a new window of the bucket, with more units than were left.
#[test]
fn a_call_that_moves_may_be_older_than_the_clock_of_its_bucket() {
    let (routes, pass) = on_clocks_of_their_own();
    let left = |n, after| {
        [("x-ratelimit-bucket", "x"), ("x-ratelimit-remaining", n), ("x-ratelimit-reset-after", after)]
    };
    let mut old = routes.of("old").begin(1);
    pass(5000);
    let young = routes.of("young");
    pass(100);
    obey(&mut young.begin(1), 200, &left("6", "30"));
    let _four: Vec<_> = (0..4).map(|_| young.try_acquire().unwrap()).collect();
    pass(1400);
    // The server wrote this response before the other one, about the same window.
    obey(&mut old, 200, &left("9", "35"));
    let more: Vec<_> = (0..9).map_while(|_| young.try_acquire().ok()).collect();
    assert!(more.len() <= 2, "{}", more.len());
}

/// Creates scopes whose clocks count from their creation, as the default clocks do, and a function
/// that lets milliseconds pass.
fn on_clocks_of_their_own() -> (Scopes, impl Fn(u64)) {
    let clocks = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let made = clocks.clone();
    let routes = Scopes::new(100, move |_| {
        let clock = ManualClock::new();
        made.lock().unwrap().push(clock.clone());
        let policy = TokenBucket::new(Rate::per_second(10), 10);
        Obey::with_options(RateLimiter::with_clock(policy, clock.clone()), options(&clock))
    });
    let routes =
        routes.by_bucket(|_, headers| Some(headers.get("x-ratelimit-bucket")?.to_str().ok()?.to_owned()));
    let pass = move |millis| {
        let clocks = clocks.lock().unwrap();
        clocks.iter().for_each(|clock: &ManualClock| clock.advance(Duration::from_millis(millis)));
    };
    (routes, pass)
}

/// Bug: a refusal that did not name the bucket paused the limiter that the route had left, which no
/// call asks.
#[test]
fn a_response_without_the_bucket_is_about_the_bucket_of_its_route() {
    let refuse: [fn(&mut Call); 2] = [
        |call| drop(obey(call, 429, &[("retry-after", "30")])),
        |call| {
            let mut limits = ResponseLimits::default();
            limits.refused = true;
            limits.retry_after = Some(When::In(secs(30)));
            call.obey_limits(limits);
        },
    ];
    for refuse in refuse {
        let routes = by_bucket(&ManualClock::new());
        let (a, b) = ("GET /channels/7/messages", "GET /channels/7/pins");
        obey(&mut routes.of(a).begin(1), 200, &[("x-ratelimit-bucket", "x")]);
        let (mut first, mut second) = (routes.of(b).begin(1), routes.of(b).begin(1));
        obey(&mut first, 200, &[("x-ratelimit-bucket", "x")]);
        refuse(&mut second);
        assert_eq!((paused_for(&routes.of(a)), paused_for(&routes.of(b))), (secs(30), secs(30)));
        assert!(routes.of(b).try_acquire().is_err());
        assert_eq!(routes.of(b).in_flight(), 0);
    }
}

/// Bug: a response of a call that moved replaced the window of a later one.
#[test]
fn an_older_response_of_a_call_that_moves_opens_no_window() {
    let clock = ManualClock::new();
    let routes = by_bucket(&clock);
    let (first, mut second) =
        (routes.of("GET /channels/7/a"), routes.of("GET /channels/7/b").try_acquire().unwrap());
    clock.advance(secs(1));
    let left = |n, after| {
        [("x-ratelimit-bucket", "b"), ("x-ratelimit-remaining", n), ("x-ratelimit-reset-after", after)]
    };
    obey(&mut first.try_acquire().unwrap(), 200, &left("3", "60"));
    clock.advance(Duration::from_millis(200));
    obey(&mut second, 200, &left("9", "1"));
    let calls: Vec<_> = (0..9).map_while(|_| first.try_acquire().ok()).collect();
    assert!(calls.len() <= 3, "{}", calls.len());
}

/// The limiter of a bucket without a known route was not paused.
#[test]
fn a_global_refusal_pauses_buckets_whose_routes_are_forgotten() {
    let clock = ManualClock::new();
    let routes = scopes(&clock, 1).by_bucket(|route, headers| {
        let bucket = headers.get("x-ratelimit-bucket")?.to_str().ok()?;
        Some(format!("{bucket} {}", route.split('/').nth(1)?))
    });
    obey(&mut routes.of("GET /7/a").try_acquire().unwrap(), 200, &[("x-ratelimit-bucket", "x")]);
    let other = routes.of("GET /8/b");
    let mut moves = routes.of("GET /7/c").try_acquire().unwrap();
    obey(&mut other.begin(1), 429, &[("x-ratelimit-global", "true"), ("retry-after", "30")]);
    obey(&mut moves, 200, &[("x-ratelimit-bucket", "x")]);
    assert!(routes.of("GET /7/c").try_acquire().is_err());
}

/// Both buckets had one limiter.
#[test]
fn a_route_that_changes_its_bucket_takes_no_limiter_along() {
    let routes = by_bucket(&ManualClock::new());
    let (a, b) = ("GET /channels/7/a", "GET /channels/7/b");
    for (route, bucket) in [(a, "x"), (b, "x"), (a, "y")] {
        obey(&mut routes.of(route).try_acquire().unwrap(), 200, &[("x-ratelimit-bucket", bucket)]);
    }
    let refused = [("x-ratelimit-bucket", "y"), ("retry-after", "30")];
    obey(&mut routes.of(a).try_acquire().unwrap(), 429, &refused);
    assert_eq!((paused_for(&routes.of(a)), paused_for(&routes.of(b))), (secs(30), Duration::ZERO));
}

#[test]
fn a_limiter_whose_bucket_is_forgotten_can_be_that_of_another_bucket() {
    let (clock, made) = (ManualClock::new(), std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let routes = {
        let (clock, made) = (clock.clone(), made.clone());
        let make = move |_: &str| {
            made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let policy = TokenBucket::new(Rate::per_second(10), 10);
            Obey::with_options(RateLimiter::with_clock(policy, clock.clone()), options(&clock))
        };
        Scopes::new(4, make)
            .by_bucket(|_, headers| Some(headers.get("x-ratelimit-bucket")?.to_str().ok()?.to_owned()))
    };
    let answer = |route: &Obey, bucket: &str| {
        obey(&mut route.try_acquire().unwrap(), 200, &[("x-ratelimit-bucket", bucket)]);
    };
    let first = routes.of("first");
    answer(&first, "a");
    let others: Vec<_> = (0..6).map(|route| routes.of(&format!("{route}"))).collect();
    others.iter().zip('b'..).for_each(|(route, bucket)| answer(route, &bucket.to_string()));
    assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 7);
    answer(&first, "z");
    assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 7, "it takes its limiter along");
    answer(&others[5], "y");
    assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 8, "its limiter is that of a bucket");
}

/// The call reserved again behind the permits that it was about to give back, and was refused.
#[test]
fn a_reservation_that_the_server_stops_does_not_wait_behind_itself() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(10)), clock.clone());
    let api = Obey::with_options(limiter, options(&clock));
    let mut first = api.try_acquire().unwrap();
    let mut reserved = api.reserve(AllRequest::from(800).within(secs(30))).unwrap();
    clock.advance(Duration::from_millis(100));
    obey(&mut first, 200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "5")]);
    assert!(poll(&mut reserved).is_pending());
    clock.advance(secs(6));
    assert!(poll(&mut reserved).is_ready());
}

/// A reported limit of zero ended the pace for good.
#[test]
fn a_pace_goes_on_after_a_limit_of_zero() {
    let (clock, rates) = (ManualClock::new(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let set = rates.clone();
    let set = move |rate: Rate| set.lock().unwrap().push(rate.as_per_second());
    let pace = Pace::between(Rate::ZERO, Rate::per_second(100), set).learn().adapt();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let api = Obey::with_options(limiter, options(&clock).pace(pace));
    let quota = |q| format!("\"a\";q={q};w=60");
    obey(&mut api.begin(1), 200, &[("ratelimit-policy", &quota(0))]);
    clock.advance(secs(10));
    obey(&mut api.begin(1), 200, &[("ratelimit-policy", &quota(3000))]);
    assert_eq!(*rates.lock().unwrap(), [50.0]);
    // 70, and then 49.
    obey(&mut api.begin(1), 429, &[]);
    obey(&mut api.begin(1), 429, &[]);
    let last = *rates.lock().unwrap().last().unwrap();
    assert!((last - 49.0).abs() < 1e-9, "{last}");
}

struct PanicsOnWake;

impl std::task::Wake for PanicsOnWake {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A manual clock whose timer wakes no task.
#[derive(Clone, Debug)]
struct WithoutTimer(ManualClock);

impl tidegate::Clock for WithoutTimer {
    fn now(&self) -> tidegate::Nanos {
        self.0.now()
    }
}

impl tidegate::Timer for WithoutTimer {
    type Sleep = Never;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, _: tidegate::Nanos) -> Never {
        Never
    }

    fn park_until(&self, _: tidegate::Nanos) {}
}

struct Never;

impl Future for Never {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl tidegate::clock::Sleep for Never {
    fn reset(self: std::pin::Pin<&mut Self>, _: tidegate::Nanos) {}
}

type Unattended = RateLimiter<TokenBucket, WithoutTimer>;

/// A limiter of one permit per second, with a waiter whose waker panics.
fn with_bad_waiter() -> (Unattended, Obey, ManualClock, impl Sized) {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), WithoutTimer(clock.clone()));
    let api = Obey::with_options(limiter.clone(), options(&clock));
    limiter.try_acquire().unwrap();
    let mut wait = Box::pin(limiter.clone().acquire_owned(1));
    let waker = Waker::from(std::sync::Arc::new(PanicsOnWake));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    (limiter, api, clock, wait)
}

fn panics<T>(call: impl FnOnce() -> T) {
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
}

/// The panic of another request's waker ended the pause before it was made.
#[test]
fn a_refusal_pauses_although_a_waker_panics() {
    let (limiter, api, clock, _wait) = with_bad_waiter();
    let mut call = api.begin(0);
    clock.jump(secs(1));
    panics(|| obey(&mut call, 429, &[("x-ratelimit-remaining", "5"), ("retry-after", "30")]));
    assert_eq!(limiter.status().paused_for, secs(30));
}

/// A call that panicked when it began was in flight for ever.
#[test]
fn a_call_whose_beginning_panicked_is_not_in_flight() {
    let (_limiter, api, clock, _wait) = with_bad_waiter();
    let left = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset-after", "60")];
    obey(&mut api.begin(0), 200, &left);
    clock.jump(secs(1));
    panics(|| api.begin(1));
    assert_eq!(api.in_flight(), 0);
}

/// Bug: a panic in the pause of one limiter ended the pause of the other scopes.
#[test]
fn a_global_refusal_pauses_all_scopes_although_a_waker_panics() {
    for refused in ["bad", "good"] {
        let (_limiter, bad, clock, _wait) = with_bad_waiter();
        let now = clock.clone();
        let routes = Scopes::new(100, move |route| match route {
            "bad" => bad.clone(),
            _ => Obey::with_options(RateLimiter::with_clock(Unlimited, clock.clone()), options(&clock)),
        });
        let names: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        names.iter().for_each(|name| drop(routes.of(name)));
        let (_bad, mut call) = (routes.of("bad"), routes.of(refused).begin(0));
        now.jump(secs(1));
        panics(|| obey(&mut call, 429, &[("x-ratelimit-global", "true"), ("retry-after", "30")]));
        assert!(names.iter().all(|name| paused_for(&routes.of(name)) == secs(30)), "{refused}");
        assert_eq!(paused_for(&routes.of("new")), secs(30));
    }
}

/// Bug: a panic in the pause of a call that moved ended the pause of its refusal.
#[test]
fn a_refusal_that_moves_a_call_pauses_although_a_waker_panics() {
    let (limiter, bad, clock, _wait) = with_bad_waiter();
    let now = clock.clone();
    let make = move |route: &str| match route {
        "bad" => bad.clone(),
        _ => Obey::with_options(RateLimiter::with_clock(Unlimited, clock.clone()), options(&clock)),
    };
    let bucket =
        |_: &str, headers: &HeaderMap| Some(headers.get("x-ratelimit-bucket")?.to_str().ok()?.into());
    let routes = Scopes::new(100, make).by_bucket(bucket);
    let left =
        [("x-ratelimit-bucket", "b"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset-after", "60")];
    obey(&mut routes.of("bad").begin(0), 200, &left);
    let mut call = routes.of("good").try_acquire().unwrap();
    now.jump(secs(1));
    panics(|| obey(&mut call, 429, &[("x-ratelimit-bucket", "b"), ("retry-after", "90")]));
    assert_eq!(limiter.status().paused_for, secs(90));
    drop(call);
    assert_eq!(routes.of("good").in_flight(), 0);
}

/// Bug: after a panic in the pause, no permits were lowered and no pace was told.
#[test]
fn a_response_lowers_permits_and_the_pace_although_a_waker_panics() {
    let (limiter, _, clock, _wait) = with_bad_waiter();
    let policy = TokenBucket::new(Rate::per_second(1), 100);
    let tokens = RateLimiter::with_clock(policy, WithoutTimer(clock.clone()));
    let all = AllOf::new("requests", &limiter).with("tokens", &tokens);
    let paced = tokens.clone();
    let pace = Pace::between(Rate::ZERO, Rate::per_second(1), move |rate| paced.set_rate(rate)).adapt();
    let api = Obey::with_options(all, options(&clock).pace(pace));
    let mut call = api.begin(0);
    clock.jump(secs(1));
    panics(|| obey(&mut call, 429, &[("x-ratelimit-remaining-tokens", "5"), ("retry-after", "30")]));
    assert_eq!(tokens.status().available, 5);
    assert_ne!(tokens.status().rate, Rate::per_second(1));
}

/// Bug: each response with the route's bucket paused the limiter again for the rest of a global
/// pause that had been ended.
#[test]
fn a_global_pause_that_was_ended_stays_ended() {
    let routes = by_bucket(&ManualClock::new());
    let (a, b) = ("GET /channels/7/a", "GET /channels/7/b");
    let bucket = ("x-ratelimit-bucket", "b");
    let global = [bucket, ("x-ratelimit-global", "true"), ("retry-after", "300")];
    obey(&mut routes.of(a).try_acquire().unwrap(), 429, &global);
    routes.of(a).forget();
    for route in [a, b] {
        obey(&mut routes.of(route).begin(1), 200, &[bucket]);
        assert!(routes.of(a).try_acquire().is_ok(), "{route}");
    }
    // A limiter that a bucket makes is paused.
    for route in [a, b] {
        obey(&mut routes.of(route).begin(1), 200, &[("x-ratelimit-bucket", route)]);
    }
    assert_eq!(paused_for(&routes.of(b)), secs(300));
}

/// Bug: a reserved call counted the most permits that it may get, and not the permits that it got.
#[test]
fn a_reserved_call_counts_the_permits_that_it_got() {
    let World { limiter, api, .. } = world();
    let left = [("x-ratelimit-remaining", "5"), ("x-ratelimit-reset-after", "60")];
    obey(&mut api.begin(1), 200, &left);
    assert_eq!(limiter.status().available, 5);
    let mut reservation = api.reserve(Request::up_to(9)).unwrap();
    let _call = begun(&mut reservation);
}

/// Bug: a call that costs only named limits lost its permits if the server did not allow it.
#[test]
fn a_call_that_costs_only_named_limits_gives_back_its_permits() {
    let clock = ManualClock::new();
    let bucket = |n| RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), n), clock.clone());
    let (requests, tokens) = (bucket(1), bucket(100));
    let all = AllOf::new("requests", &requests).with("tokens", &tokens);
    let api = Obey::with_options(all, options(&clock));
    let left = [("x-ratelimit-remaining-tokens", "1"), ("x-ratelimit-reset-tokens", "60s")];
    obey(&mut api.begin(0), 200, &left);
    tokens.reset();
    let costs = AllRequest::from([("tokens", 60)]).cost_of_others(0);
    assert!(api.try_acquire_many(costs.clone()).is_err());
    assert_eq!(tokens.status().available, 100);
    // An exempt call has no permits to give back.
    tokens.debit(60);
    assert!(api.try_acquire_many(costs.exempt()).is_ok());
    assert_eq!(tokens.status().available, 40);
}

/// Bug: a member in shadow mode, which lets a call pass without permits, got the call's permits
/// back if the server did not allow it.
#[test]
fn a_member_in_shadow_gets_back_what_it_gave() {
    for (available, reserves) in [(0, false), (7, false), (0, true), (7, true)] {
        let clock = ManualClock::new();
        let bucket = |n| RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), n), clock.clone());
        let (requests, tokens) = (bucket(10), bucket(100));
        let all = AllOf::new("requests", &requests).with("tokens", &tokens);
        let api = Obey::with_options(all, options(&clock));
        let left = [("x-ratelimit-remaining-tokens", "3"), ("x-ratelimit-reset-tokens", "60s")];
        obey(&mut api.begin(0), 200, &left);
        tokens.set_shadow(true);
        tokens.reset();
        tokens.keep_at_most(available);
        let request = AllRequest::from([("tokens", 5)]).within(Duration::ZERO);
        let refused = match reserves {
            true => poll(&mut api.reserve(request).unwrap()),
            false => poll(&mut Box::pin(api.acquire_many(request))),
        };
        assert!(matches!(refused, Poll::Ready(Err(_))), "{refused:?}");
        assert_eq!((requests.status().available, tokens.status().available), (10, available));
    }
}

/// Bug: the permits of a call whose beginning panicked counted as used.
#[test]
fn a_call_whose_beginning_panics_gives_back_its_permits() {
    for is_reserved in [false, true] {
        let (limiter, _, clock, _wait) = with_bad_waiter();
        let policy = TokenBucket::new(Rate::per_second(1), 100);
        let tokens = RateLimiter::with_clock(policy, WithoutTimer(clock.clone()));
        let all = AllOf::new("requests", &limiter).with("tokens", &tokens);
        let api = Obey::with_options(all, options(&clock));
        let left = [("x-ratelimit-remaining-tokens", "1"), ("x-ratelimit-reset-tokens", "60s")];
        obey(&mut api.begin([("requests", 0), ("tokens", 1)]), 200, &left);
        tokens.reset();
        clock.jump(secs(1));
        let costs = AllRequest::from([("tokens", 1)]).cost_of_others(0);
        match is_reserved {
            false => panics(|| api.try_acquire_many(costs).map(drop)),
            true => panics(|| begun(&mut api.reserve(costs).unwrap())),
        }
        assert_eq!((api.in_flight(), tokens.status().available), (0, 100), "{is_reserved}");
    }
}

/// Bug: a scope without calls in flight was forgotten although calls waited, and a newcomer
/// overtook them at a new limiter.
#[test]
fn a_scope_whose_calls_wait_stays() {
    let clock = ManualClock::new();
    let hosts = scopes(&clock, 2);
    obey(&mut hosts.of("a").try_acquire_many(10).unwrap(), 200, &[]);
    let a = hosts.of("a");
    let mut waits = Box::pin(a.acquire());
    assert!(poll(&mut waits).is_pending());
    drop((hosts.of("b"), hosts.of("c"), hosts.of("d"), hosts.of("e")));
    assert!(hosts.of("a").try_acquire().is_err());
    clock.advance(secs(1));
    assert!(poll(&mut waits).is_ready());
}

/// Bug: a new scope was forgotten at once if others had calls in flight, so its calls got limiters
/// of their own.
#[test]
fn a_new_scope_stays() {
    let hosts = scopes(&ManualClock::new(), 4);
    let busy: Vec<_> =
        ["a", "b", "c", "d"].into_iter().map(|name| hosts.of(name).try_acquire().unwrap()).collect();
    let _call = hosts.of("new").try_acquire_many(10).unwrap();
    assert!(hosts.of("new").try_acquire().is_err());
    drop(busy);
}

/// Bug: a limit of zero hid the other limits of its response from the pace.
#[test]
fn a_pace_learns_beside_a_limit_of_zero() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 100), clock.clone());
    let paced = limiter.clone();
    let pace = Pace::between(Rate::ZERO, Rate::per_second(100), move |rate| paced.set_rate(rate)).learn();
    let api = Obey::with_options(limiter.clone(), options(&clock).pace(pace));
    obey(&mut api.begin(1), 200, &[("ratelimit-policy", "\"a\";q=0;w=60, \"b\";q=600;w=60")]);
    assert_eq!(limiter.status().rate, Rate::per_second(10));
    // A refusal keeps a limit of zero.
    obey(&mut api.begin(1), 429, &[("ratelimit-policy", "\"a\";q=0;w=60, \"b\";q=300;w=60")]);
    assert_eq!(limiter.status().rate, Rate::per_second(5));
}

/// Bug: a limiter that another response had made unnecessary was dropped under the lock of the
/// scopes, so user code that runs in the drop and uses the scopes blocked for ever.
#[test]
fn a_limiter_that_is_not_needed_is_dropped_without_the_lock() {
    struct UsesScopes(std::sync::Arc<std::sync::OnceLock<Scopes>>);

    impl Drop for UsesScopes {
        fn drop(&mut self) {
            self.0.get().map(Scopes::len);
        }
    }

    let (clock, routes) = (ManualClock::new(), std::sync::Arc::<std::sync::OnceLock<Scopes>>::default());
    let to_bucket = |route: &str, bucket| {
        let routes = routes.get().unwrap();
        obey(&mut routes.of(route).begin(1), 200, &[("x-ratelimit-bucket", bucket)]);
    };
    let of_make = routes.clone();
    let made = std::sync::atomic::AtomicUsize::new(0);
    let make = move |_: &str| {
        // The third limiter is for the bucket "y", which meanwhile gets another one.
        if made.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 2 {
            let other = of_make.get().unwrap().of("other");
            obey(&mut other.begin(1), 200, &[("x-ratelimit-bucket", "y")]);
        }
        let uses_scopes = UsesScopes(of_make.clone());
        let is_refusal = move |_: StatusCode, _: &HeaderMap| {
            let _ = &uses_scopes;
            false
        };
        let limiter = RateLimiter::with_clock(Unlimited, clock.clone());
        Obey::with_options(limiter, options(&clock).refusal(is_refusal))
    };
    let bucket =
        |_: &str, headers: &HeaderMap| Some(headers.get("x-ratelimit-bucket")?.to_str().ok()?.into());
    routes.set(Scopes::new(100, make).by_bucket(bucket)).unwrap();
    to_bucket("a", "x");
    to_bucket("other", "z");
    to_bucket("a", "y");
}

/// Bug: an error of gRPC, whose HTTP status is 200, counted as a success, and so did the headers
/// before its trailers.
#[test]
fn an_error_of_a_grpc_server_is_no_success() {
    let world = world();
    for (grpc_status, paused_for) in [("14", 2), ("5", 1), ("0", 1)] {
        for has_trailers in [false, true] {
            world.api.forget();
            world.respond(429, &[]);
            world.clock.advance(secs(2));
            // An error of the server ends no row of refusals.
            let mut call = world.api.begin(1);
            if has_trailers {
                obey(&mut call, 200, &[("content-type", "application/grpc+proto")]);
            }
            obey(&mut call, 200, &[("grpc-status", grpc_status)]);
            world.respond(429, &[]);
            assert_eq!(world.paused_for(), secs(paused_for), "{grpc_status}, {has_trailers}");
        }
    }
    // The status of gRPC-Web is in the body.
    world.api.forget();
    world.respond(429, &[]);
    world.clock.advance(secs(2));
    world.respond(200, &[("content-type", "application/grpc-web+proto")]);
    world.respond(429, &[]);
    assert_eq!(world.paused_for(), secs(1));
}

/// Bug: a global refusal paused the limiter of a bucket once for each route and once for the
/// bucket. Over a store, each pause is a message.
#[test]
fn a_global_refusal_pauses_each_limiter_once() {
    let clock = ManualClock::new();
    let pauses = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = pauses.clone();
    let make = move |_: &str| {
        let share = AnyLimiter::from(RateLimiter::with_clock(Unlimited, clock.clone()));
        let away = Away { store: share.clone(), share, pauses: count.clone() };
        Obey::with_options(AnyLimiter::new(away), options(&clock))
    };
    let bucket =
        |_: &str, headers: &HeaderMap| Some(headers.get("x-ratelimit-bucket")?.to_str().ok()?.into());
    let routes = Scopes::new(100, make).by_bucket(bucket);
    for route in ["a", "b", "c"] {
        obey(&mut routes.of(route).begin(1), 200, &[("x-ratelimit-bucket", "x")]);
    }
    let mut call = routes.of("other").begin(1);
    obey(&mut call, 429, &[("x-ratelimit-global", "true"), ("retry-after", "30")]);
    // The limiter of the bucket, and the limiter whose call was refused.
    assert_eq!(pauses.load(std::sync::atomic::Ordering::Relaxed), 2);
}
