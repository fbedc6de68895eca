//! Requests that wait behind a pause, on paused time over a model of a server.

use std::time::Duration;

use tidegate::{
    AllPermits, AllRefusal, AllRequest, AnyLimiter, Clock, DefaultClock, Nanos, Pause, QueueBounds, Refusal,
    Request, WhenFull,
};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreLimiter, WhileAway};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, on_model, one_of_two, settle};

const MINUTE: Duration = Duration::from_secs(60);

type Resume = std::pin::Pin<Box<dyn Future<Output = Result<bool, AllRefusal>>>>;

const LINES: [&str; 7] = [
    "token_bucket 100/s burst 10",
    "leaky_bucket 100/s capacity 1000",
    "smooth_bursty 100/s",
    "fixed_window 100/s",
    "sliding_window 100/s cells 10",
    "sliding_estimate 100/s",
    "sliding_log 100/s",
];

/// Processes that share one limit.
fn fleet(model: &Model, line: &str, processes: usize, leased: bool) -> Vec<StoreLimiter> {
    let limiter = |_| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("limit", line);
        let limiter = if leased { limiter.leased() } else { limiter };
        limiter.build().unwrap()
    };
    (0..processes).map(limiter).collect()
}

/// A request in a separate task, which returns the time of the grant.
fn wait(limiter: &StoreLimiter, request: impl Into<Request>) -> JoinHandle<Result<Instant, Refusal>> {
    let limiter = AnyLimiter::from(limiter.clone());
    let request = request.into();
    tokio::spawn(async move {
        let answer = limiter.acquire_many(request).await;
        answer.map(|_| Instant::now()).map_err(|refusal| refusal.refusal().unwrap())
    })
}

/// A process to which the store had reported a pause granted its share in the pause when the store
/// went away.
#[test]
fn a_pause_that_the_store_reported_holds_while_the_store_is_away() {
    for (is_counting, is_resumed) in [(false, false), (false, true), (true, false), (true, true)] {
        on_model(async move |model| {
            let open = || one_of_two(&model);
            let limiter = |store: &Store| -> AnyLimiter {
                match is_counting {
                    true => store.counting("all", 8).build().unwrap().into(),
                    false => store.limiter("all").limit("limit", "fixed_window 8/s").build().unwrap().into(),
                }
            };
            let (first, second) = (limiter(&open()), limiter(&open()));
            drop(second.acquire_now(1).await.unwrap());
            first.pause(Pause::lasting(MINUTE)).unwrap();
            sleep(MS * 5).await;
            let is_paused = |answer: Result<AllPermits, AllRefusal>| {
                matches!(answer.unwrap_err().refusal(), Some(Refusal::Paused { .. }))
            };
            assert!(is_paused(second.acquire_now(1).await));
            if is_resumed {
                first.non_blocking().resume();
                sleep(MS * 5).await;
                drop(second.acquire_now(1).await.unwrap());
            }
            model.stop(true);
            sleep(SECOND * 2).await;
            let answer = second.acquire_now(1).await;
            if is_resumed {
                assert!(answer.unwrap().is_degraded());
                return;
            }
            let refusal = answer.as_ref().unwrap_err();
            assert!(refusal.is_degraded() && refusal.retry_after().unwrap() <= MINUTE, "{refusal:?}");
            assert!(is_paused(answer));
            sleep(MINUTE).await;
            assert!(second.acquire_now(1).await.unwrap().is_degraded());
        });
    }
}

/// A process that had paused a limit was paused while the store was away, although the store had
/// reported that another process had ended the pause.
#[test]
fn a_pause_that_another_process_has_ended_is_over_while_the_store_is_away() {
    for is_counting in [false, true] {
        on_model(async move |model| {
            let limiter = || -> AnyLimiter {
                let store = one_of_two(&model);
                match is_counting {
                    true => store.counting("all", 8).build().unwrap().into(),
                    false => store.limiter("all").limit("limit", "fixed_window 8/s").build().unwrap().into(),
                }
            };
            let (first, second) = (limiter(), limiter());
            first.pause(Pause::lasting(MINUTE)).unwrap();
            // The message is on its way, and this process obeys it in any case.
            let refusal = first.acquire_now(1).await.unwrap_err().refusal();
            assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
            second.non_blocking().resume();
            sleep(MS * 5).await;
            drop(first.acquire_now(1).await.unwrap());
            model.stop(true);
            sleep(SECOND * 2).await;
            let granted = first.acquire_now(1).await;
            assert!(granted.as_ref().is_ok_and(AllPermits::is_degraded), "{granted:?}");
        });
    }
}

/// The pause that a process knew of was gone with the limiter that had learned of it: a limiter of
/// a key that is made for each request, or a second one of the same tag.
#[test]
fn all_limiters_of_a_tag_know_of_its_pause_while_the_store_is_away() {
    on_model(async |model| {
        let store = one_of_two(&model);
        let keys = store.keyed("users").limit("calls", "fixed_window 8/s").build().unwrap();
        let limiter = || store.limiter("all").limit("calls", "fixed_window 8/s").build().unwrap();
        let in_use = || store.counting("all", 8).build().unwrap();
        keys.limiter("alice").pause(Pause::lasting(MINUTE)).await.unwrap();
        limiter().pause(Pause::lasting(MINUTE)).await.unwrap();
        in_use().pause(Pause::lasting(MINUTE)).await.unwrap();
        model.stop(true);
        sleep(SECOND * 2).await;
        let answers = |key: &'static str| {
            let (keys, limiter, in_use) = (keys.clone(), limiter(), in_use());
            async move {
                [keys.acquire_now(key, 1).await, limiter.acquire_now(1).await, in_use.acquire_now(1).await]
            }
        };
        for answer in answers("alice").await {
            let refusal = answer.unwrap_err();
            assert!(refusal.is_degraded() && matches!(refusal.refusal(), Some(Refusal::Paused { .. })));
        }
        drop(keys.acquire_now("bob", 1).await.unwrap());
        sleep(MINUTE).await;
        for answer in answers("alice").await {
            assert!(answer.unwrap().is_degraded());
        }
    });
}

/// Requests that waited for a share were granted in a pause of their process, and those that came
/// in the pause were refused, although they may wait.
#[test]
fn requests_that_may_wait_are_granted_by_a_share_after_the_pause_of_their_process() {
    for is_resumed in [false, true] {
        on_model(async move |model| {
            let limiter =
                one_of_two(&model).limiter("all").limit("limit", "fixed_window 4/s").build().unwrap();
            let handle = AnyLimiter::from(limiter.clone());
            drop(handle.acquire().await.unwrap());
            model.stop(true);
            sleep(SECOND * 2).await;
            let before: Vec<_> = (0..5).map(|_| wait(&limiter, 1)).collect();
            sleep(100 * MS).await;
            let reserved = handle.non_blocking().reserve(1).unwrap();
            let reserved = tokio::spawn(reserved);
            sleep(100 * MS).await;
            let began = Instant::now();
            handle.pause(Pause::lasting(MINUTE)).unwrap();
            let after: Vec<_> = (0..3).map(|_| wait(&limiter, 1)).collect();
            let short = wait(&limiter, Request::permits(1).within(50 * SECOND)).await.unwrap();
            assert!(matches!(short, Err(Refusal::Paused { .. })), "{short:?}");
            let end = if is_resumed { 30 * SECOND } else { MINUTE };
            sleep(30 * SECOND).await;
            if is_resumed {
                handle.non_blocking().resume();
            }
            let mut times = Vec::new();
            for task in before.into_iter().chain(after) {
                times.push(task.await.unwrap().unwrap());
            }
            // Two of the first five had a share before the pause.
            let in_pause = times.iter().filter(|time| **time > began && **time < began + end).count();
            assert_eq!(in_pause, 0, "{times:?}");
            assert!(times.iter().all(|time| *time <= began + end + 5 * SECOND), "{times:?}");
            let refusal = reserved.await.unwrap().unwrap_err().refusal();
            assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
        });
    }
}

/// A request behind a pause that its process knew of waited for ever: no other call showed that the
/// store was back, and that another process had ended the pause.
#[test]
fn a_request_behind_a_pause_learns_without_other_calls_that_the_store_is_back() {
    on_model(async |model| {
        let limiter = |while_away| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            store.limiter("all").limit("limit", "fixed_window 8/s").build().unwrap()
        };
        let (first, second) = (limiter(WhileAway::Open), limiter(WhileAway::Closed));
        second.pause(Pause::lasting(Duration::MAX)).await.unwrap();
        first.status().await.unwrap();
        model.stop(true);
        let waiting = wait(&first, 1);
        sleep(100 * MS).await;
        model.stop(false);
        assert!(second.resume().await.unwrap());
        _ = timeout(7 * SECOND, waiting).await.unwrap().unwrap().unwrap();
    });
}

/// A reservation that was due in a pause took the permits of the share, and was then refused. One
/// that had its permits was refused when it was polled again.
#[test]
fn a_reservation_in_a_share_takes_its_permits_or_is_refused() {
    on_model(async |model| {
        let limiter = one_of_two(&model).limiter("all").limit("limit", "fixed_window 4/h").build().unwrap();
        let limiter = AnyLimiter::from(limiter);
        drop(limiter.acquire_now(1).await.unwrap());
        model.stop(true);
        sleep(2 * 60 * MINUTE).await;
        drop(limiter.acquire_now(1).await);
        let handle = limiter.non_blocking();
        let mut claimed = handle.reserve(1).unwrap();
        assert_eq!((&mut claimed).await.unwrap().permits(), 1);
        let reserved = handle.reserve(1).unwrap();
        sleep(100 * MS).await;
        limiter.pause(Pause::lasting(30 * SECOND)).unwrap();
        assert!(matches!(reserved.await.unwrap_err().refusal(), Some(Refusal::Paused { .. })));
        assert_eq!((&mut claimed).await.unwrap().permits(), 1);
        sleep(31 * SECOND).await;
        claimed.settle(0).unwrap();
        assert!(limiter.acquire_now(1).await.unwrap().is_degraded());
    });
}

/// A task that ran late had its permit by the share in a pause that had begun meanwhile.
#[test]
fn a_wait_that_is_due_when_a_pause_begins_gets_nothing_from_the_share() {
    on_model(async |model| {
        let limiter = one_of_two(&model).limiter("all").limit("limit", "fixed_window 4/s").build().unwrap();
        drop(limiter.acquire_now(1).await.unwrap());
        model.stop(true);
        sleep(2 * SECOND).await;
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let mut wait = Box::pin(limiter.acquire_within(MINUTE));
            _ = timeout(200 * MS, &mut wait).await;
            waiting.push(wait);
        }
        sleep(2 * SECOND).await;
        AnyLimiter::from(limiter.clone()).pause(Pause::lasting(10 * SECOND)).unwrap();
        let began = Instant::now();
        let last = waiting.pop().unwrap();
        assert!(last.await.unwrap().is_degraded());
        assert!(began.elapsed() >= 10 * SECOND, "{:?}", began.elapsed());
    });
}

/// The time of the pause was that of a clock that began with the call: a pause of five seconds
/// lasted an hour more.
#[test]
fn a_pause_until_a_time_ends_at_that_time() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("limit", "fixed_window 8/s").build().unwrap();
        let in_use = store.counting("jobs", 1).build().unwrap();
        sleep(60 * MINUTE).await;
        let in_five = |clock: &DefaultClock| clock.now().saturating_add(Nanos::from_duration(5 * SECOND));
        limiter.pause(Pause::until(in_five(limiter.clock()))).await.unwrap();
        in_use.pause(Pause::until(in_five(in_use.clock()))).await.unwrap();
        for paused_for in
            [limiter.status().await.unwrap(), in_use.status().await.unwrap()].map(|of| of.paused_for)
        {
            assert!(paused_for > 4900 * MS && paused_for <= 5 * SECOND, "{paused_for:?}");
        }
    });
}

/// A reset that the store did not reply to ended the pause that the process knew of.
#[test]
fn only_a_reset_that_the_store_replied_to_ends_a_known_pause() {
    for is_away in [false, true] {
        on_model(async move |model| {
            let limiter =
                one_of_two(&model).limiter("all").limit("limit", "fixed_window 8/s").build().unwrap();
            limiter.pause(Pause::lasting(MINUTE)).await.unwrap();
            model.stop(is_away);
            assert_eq!(limiter.reset().await.is_err(), is_away);
            model.stop(true);
            sleep(2 * SECOND).await;
            assert_eq!(limiter.acquire_now(1).await.is_err(), is_away);
        });
    }
}

/// The state that a refused request asks for came with a second call, after the timeout.
#[test]
fn a_paused_limit_of_permits_in_use_reports_its_state_with_the_refusal() {
    run(async {
        let model = Model::new(1, Network::steady(20 * MS));
        let limit = |timeout| {
            let store = model.open(Store::builder("redis://model").timeout(timeout)).unwrap();
            store.counting("all", 8).build().unwrap()
        };
        limit(SECOND).pause(Pause::lasting(MINUTE)).await.unwrap();
        let limit = limit(50 * MS);
        // It connects.
        _ = limit.acquire_now(1).await;
        sleep(SECOND).await;
        let began = Instant::now();
        let refusal = limit.acquire_now(AllRequest::from(1).with_left()).await.unwrap_err();
        assert!(began.elapsed() < 50 * MS, "{:?}: {refusal:?}", began.elapsed());
        let left = refusal.left().unwrap();
        assert_eq!(left.members[0].1.available, 0);
        assert!(left.paused_for > 58 * SECOND, "{:?}", left.paused_for);
    });
}

/// A grant that took no permits of a paused limit ended the pause that the process knew of.
#[test]
fn a_grant_of_other_limits_does_not_end_a_known_pause() {
    on_model(async |model| {
        let store = one_of_two(&model);
        let both = store.limiter("all").limit("a", "fixed_window 8/s").limit("b", "fixed_window 8/s");
        let both = AnyLimiter::from(both.build().unwrap());
        let of_a = one_of_two(&model).limiter("all").limit("a", "fixed_window 8/s").build().unwrap();
        of_a.pause(Pause::lasting(MINUTE)).await.unwrap();
        assert!(both.acquire_now(1).await.is_err());
        drop(both.acquire_now(AllRequest::from([("a", 0), ("b", 1)])).await.unwrap());
        model.stop(true);
        sleep(2 * SECOND).await;
        let answer = both.acquire_now(1).await;
        assert!(matches!(answer.unwrap_err().refusal(), Some(Refusal::Paused { .. })));
    });
}

/// A process that only debited permits did not learn of a pause, nor of its end.
#[test]
fn a_debit_reports_a_pause_and_its_end_for_the_time_that_the_store_is_away() {
    for is_resumed in [false, true] {
        on_model(async move |model| {
            let limiter =
                || one_of_two(&model).limiter("all").limit("limit", "fixed_window 8/s").build().unwrap();
            let (first, second) = (limiter(), limiter());
            if is_resumed {
                first.pause(Pause::lasting(MINUTE)).await.unwrap();
                assert!(second.resume().await.unwrap());
            } else {
                second.pause(Pause::lasting(MINUTE)).await.unwrap();
            }
            first.debit(1).await.unwrap();
            model.stop(true);
            sleep(SECOND * 2).await;
            let answer = first.acquire_now(1).await;
            assert_eq!(answer.is_ok(), is_resumed, "{answer:?}");
        });
    }
}

/// What a process knows of a pause it also knows from a status. A process that had only asked for
/// the status granted its share in a pause, or refused after its end.
#[test]
fn a_status_reports_a_pause_and_its_end_for_the_time_that_the_store_is_away() {
    for (is_counting, is_resumed) in [(false, false), (false, true), (true, false), (true, true)] {
        on_model(async move |model| {
            let open = || one_of_two(&model);
            // The two types of limiter have the same calls.
            macro_rules! granted_after_a_status {
                ($limiter:expr) => {{
                    let [first, second] = [(); 2].map(|()| $limiter.build().unwrap());
                    if is_resumed {
                        first.pause(Pause::lasting(MINUTE)).await.unwrap();
                        assert!(second.resume().await.unwrap());
                    } else {
                        second.pause(Pause::lasting(MINUTE)).await.unwrap();
                    }
                    first.status().await.unwrap();
                    model.stop(true);
                    sleep(SECOND * 2).await;
                    AnyLimiter::from(first).acquire_now(1).await
                }};
            }
            let granted = match is_counting {
                true => granted_after_a_status!(open().counting("all", 8)),
                false => granted_after_a_status!(open().limiter("all").limit("limit", "fixed_window 8/s")),
            };
            let refusal = granted.as_ref().map_or_else(AllRefusal::refusal, |_| None);
            let is_paused = matches!(refusal, Some(Refusal::Paused { .. }));
            assert!(is_paused != is_resumed && granted.is_ok() == is_resumed, "{granted:?}");
        });
    }
}

/// A reply to a call from before the end of a pause reported the pause. A process that had ended
/// the pause itself was then paused while the store was away.
#[test]
fn a_late_reply_does_not_renew_a_pause_that_its_process_has_ended() {
    for (is_counting, is_awaited) in [(false, false), (false, true), (true, false), (true, true)] {
        run(async move {
            let model = Model::new(1, Network::steady(MS * 10));
            let store = one_of_two(&model);
            let (limiter, resume): (AnyLimiter, Resume) = if is_counting {
                let counting = store.counting("all", 8).build().unwrap();
                (counting.clone().into(), Box::pin(async move { counting.resume().await }))
            } else {
                let limit = store.limiter("all").limit("limit", "fixed_window 8/s").build().unwrap();
                (limit.clone().into(), Box::pin(async move { limit.resume().await }))
            };
            drop(limiter.acquire_now(1).await.unwrap());
            limiter.pause(Pause::lasting(MINUTE)).unwrap();
            sleep(MS * 30).await;
            let mut asked = std::pin::pin!(limiter.acquire_now(1));
            // The server has decided in the pause, and the reply is on its way.
            assert!(timeout(MS * 15, &mut asked).await.is_err());
            model.stop(true);
            if is_awaited {
                let (resumed, answer) = tokio::join!(resume, asked);
                assert!(resumed.is_err() && answer.is_err());
            } else {
                limiter.non_blocking().resume();
                assert!(asked.await.is_err());
            }
            sleep(SECOND * 2).await;
            let granted = limiter.acquire_now(1).await;
            assert!(granted.as_ref().is_ok_and(AllPermits::is_degraded), "{granted:?}");
        });
    }
}

/// Requests that waited behind a pause kept their booked times behind its predicted end, and all
/// later requests of all processes waited behind them.
#[test]
fn requests_behind_a_pause_go_on_when_it_is_ended() {
    // A leaky bucket of 1,000 delays no request for a minute.
    let lines = LINES.into_iter().filter(|line| !line.starts_with("leaky"));
    for (line, leased) in lines.flat_map(|line| [(line, false), (line, true)]) {
        on_model(async move |model| {
            let limiters = fleet(&model, line, 3, leased);
            for limiter in &limiters {
                let _ = wait(limiter, 1).await.unwrap().unwrap();
            }
            limiters[0].pause(Pause::lasting(MINUTE).keep_permits()).await.unwrap();
            let own: Vec<_> = (0..3).map(|_| wait(&limiters[0], 1)).collect();
            let other: Vec<_> = (0..3).map(|_| wait(&limiters[1], 1)).collect();
            sleep(300 * MS).await;
            assert_eq!(limiters[0].resume().await, Ok(true));
            let resumed = Instant::now();
            // A process without requests that wait.
            let newcomer = wait(&limiters[2], 1).await.unwrap().unwrap();
            assert!(newcomer - resumed <= 1100 * MS, "{line}: a newcomer by {:?}", newcomer - resumed);
            for (tasks, most) in [(own, 1100 * MS), (other, 2200 * MS)] {
                for task in tasks {
                    let took = task.await.unwrap().unwrap() - resumed;
                    assert!(took <= most, "{line}, leased {leased}: {took:?}");
                }
            }
        });
    }
}

/// A lease that was predicted behind a pause did not go back. Another was asked for each second,
/// and requests stood behind all of them.
#[test]
fn no_lease_stays_booked_behind_a_pause() {
    for while_away in [WhileAway::Wait, WhileAway::Closed] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let limit = || store.limiter("all").limit("limit", LINES[0]);
            let (leased, exact) = (limit().leased().build().unwrap(), limit().build().unwrap());
            for _ in 0..100 {
                let limiter = AnyLimiter::from(leased.clone());
                tokio::spawn(async move { while limiter.acquire().await.is_ok() {} });
            }
            sleep(2 * SECOND).await;
            exact.pause(Pause::lasting(MINUTE)).await.unwrap();
            let paused = Instant::now();
            for second in 1..60 {
                sleep(SECOND).await;
                // Newcomers of all kinds.
                let limiter = AnyLimiter::from(leased.clone());
                tokio::spawn(async move { limiter.acquire_within(Duration::from_secs(61 - second)).await });
            }
            drop(leased);
            let granted = wait(&exact, Request::permits(1).within(6 * SECOND)).await.unwrap();
            let took = granted.map(|at| at - paused);
            assert!(took.as_ref().is_ok_and(|took| *took < MINUTE + 4 * SECOND), "{while_away:?}: {took:?}");
        });
    }
}

/// A pause that ends by itself: the requests are granted in order, as predicted, and no earlier.
#[test]
fn requests_behind_a_pause_are_granted_in_order_when_it_has_ended() {
    for line in ["token_bucket 100/s burst 10", "smooth_bursty 100/s", "sliding_log 1000/s"] {
        on_model(async move |model| {
            let [one, other] = &fleet(&model, line, 2, false)[..] else { panic!("two") };
            one.pause(Pause::lasting(3 * SECOND)).await.unwrap();
            let paused = Instant::now();
            let mut tasks = Vec::new();
            for i in 0..200 {
                tasks.push(wait(if i % 4 == 3 { other } else { one }, 1));
                sleep(10 * MS).await;
            }
            let mut last = [paused; 2];
            for (i, task) in tasks.into_iter().enumerate() {
                let granted = task.await.unwrap().unwrap();
                assert!(granted - paused >= 2990 * MS, "{line}: {:?}", granted - paused);
                assert!(granted - paused <= 5200 * MS, "{line}: {:?}", granted - paused);
                let before = &mut last[usize::from(i % 4 == 3)];
                assert!(granted >= *before, "{line}: the {i}th");
                *before = granted;
            }
        });
    }
}

/// A request that may not wait that long is refused at once, even behind requests of other
/// processes.
#[test]
fn a_request_that_a_pause_makes_too_late_is_refused_at_once() {
    on_model(async |model| {
        let limiters = fleet(&model, "token_bucket 10/s burst 10", 2, false);
        limiters[0].pause(Pause::lasting(2 * SECOND)).await.unwrap();
        // The first is due at 2.1 seconds.
        let within = || Request::permits(1).within(2550 * MS);
        let tasks: Vec<_> = (0..100).map(|i| wait(&limiters[i % 2], within())).collect();
        sleep(100 * MS).await;
        let refused = tasks.iter().filter(|task| task.is_finished()).count();
        assert_eq!(refused, 95);
        let mut granted = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => granted += 1,
                Err(refusal) => assert!(matches!(refusal, Refusal::Paused { .. }), "{refusal:?}"),
            }
        }
        assert_eq!(granted, 5);
    });
}

/// A wait that is dropped behind a pause leaves no trace, for those behind it and after the pause.
#[test]
fn a_wait_that_is_dropped_behind_a_pause_leaves_no_trace() {
    for line in LINES {
        on_model(async move |model| {
            let limiters = fleet(&model, line, 2, false);
            let before = limiters[0].status().await.unwrap();
            limiters[0].pause(Pause::lasting(2 * SECOND).keep_permits()).await.unwrap();
            let status = limiters[1].status().await.unwrap();
            let storm: Vec<_> = (0..300).map(|i| wait(&limiters[i % 2], 1)).collect();
            sleep(100 * MS).await;
            storm.iter().for_each(JoinHandle::abort);
            sleep(100 * MS).await;
            let now = limiters[1].status().await.unwrap();
            let next = |status: &tidegate::AllStatus| status.members[0].1.next_in;
            let passed = next(&status).saturating_sub(next(&now));
            assert!(passed > 195 * MS && passed < 215 * MS, "{line}: {passed:?}");
            sleep(2 * SECOND).await;
            let available = |status: &tidegate::AllStatus| status.members[0].1.available;
            let now = limiters[0].status().await.unwrap();
            assert!(available(&now) >= available(&before), "{line}: {}", available(&now));
        });
    }
}

/// A full queue refuses newcomers behind a pause, or drops others for them.
#[test]
fn a_line_behind_a_pause_is_bounded() {
    on_model(async |model| {
        let limiter = &fleet(&model, "token_bucket 10/s burst 10", 1, false)[0];
        limiter.pause(Pause::lasting(2 * SECOND)).await.unwrap();
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(2));
        let tasks: Vec<_> = (0..3).map(|_| wait(limiter, 1)).collect();
        sleep(100 * MS).await;
        let [_first, second, third] = tasks.try_into().unwrap();
        assert!(matches!(third.await.unwrap(), Err(Refusal::QueueFull { .. })));
        let bounds = QueueBounds::UNBOUNDED.max_waiters(2).when_full(WhenFull::DropLeastImportant);
        limiter.set_queue_bounds(bounds);
        let important = wait(limiter, Request::permits(1).priority(1));
        assert_eq!(second.await.unwrap(), Err(Refusal::Displaced));
        let took = important.await.unwrap().unwrap();
        assert!(took.elapsed() < MS);
    });
}

/// A reservation reports when it is due, and then that it is due earlier.
#[test]
fn a_reservation_behind_a_pause_is_due_when_the_pause_is_ended() {
    on_model(async |model| {
        let [one, other] = &fleet(&model, "token_bucket 10/s burst 10", 2, false)[..] else { panic!() };
        one.pause(Pause::lasting(MINUTE).keep_permits()).await.unwrap();
        let reservation = AnyLimiter::from(one.clone()).non_blocking().reserve(1).unwrap();
        sleep(10 * MS).await;
        let due = reservation.due_in();
        assert!(due > MINUTE - SECOND && due <= MINUTE, "{due:?}");
        assert_eq!(other.resume().await, Ok(true));
        // The process checks within a second.
        sleep(1100 * MS).await;
        assert_eq!(reservation.due_in(), Duration::ZERO);
        let _ = timeout(MS, reservation).await.unwrap().unwrap();
    });
}

/// A reservation in a pause reported the former end of the pause after its own process had extended
/// the pause.
#[test]
fn a_reservation_behind_a_pause_that_its_process_prolongs_is_due_at_its_end() {
    for line in LINES {
        on_model(async |model| {
            let limiter = fleet(&model, line, 1, false).remove(0);
            let _ = wait(&limiter, 1).await.unwrap().unwrap();
            limiter.pause(Pause::lasting(100 * MS).keep_permits()).await.unwrap();
            let mut reservation = AnyLimiter::from(limiter.clone()).non_blocking().reserve(1).unwrap();
            sleep(10 * MS).await;
            limiter.pause(Pause::lasting(300 * MS).keep_permits()).await.unwrap();
            let (due, asked) = (reservation.due_in(), Instant::now());
            assert!(due >= 290 * MS, "{line}: {due:?}");
            (&mut reservation).await.unwrap();
            assert!(asked.elapsed() >= due, "{line}: {due:?}, {:?}", asked.elapsed());
        });
    }
}

/// A reservation that was settled before its decision was charged nothing for a limit that was not
/// named, and the store kept what it had predicted for the reservation.
#[test]
fn a_reservation_settled_behind_a_pause_is_charged_what_was_not_named() {
    for line in ["token_bucket 10/h burst 10", "fixed_window 10/h", "sliding_log 10/h"] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("a", line).limit("b", line).build().unwrap();
            limiter.pause(Pause::lasting(MINUTE).keep_permits()).await.unwrap();
            let any = AnyLimiter::from(limiter.clone());
            let reservation = any.non_blocking().reserve(5).unwrap();
            sleep(10 * MS).await;
            reservation.settle([("a", 0)]).unwrap();
            // It has the permits that came back, and those that were not charged.
            let request = AllRequest::new().cost("a", 10).cost("b", 5);
            let mut next = any.non_blocking().reserve(request).unwrap();
            sleep(10 * MS).await;
            assert!(next.due_in() <= MINUTE, "{line}: {:?}", next.due_in());
            sleep(MINUTE).await;
            assert!(timeout(10 * MS, &mut next).await.is_ok(), "{line}");
            let status = limiter.status().await.unwrap();
            let left: Vec<_> = status.members.iter().map(|(_, left)| left.available).collect();
            assert_eq!(left, [0, 0], "{line}");
        });
    }
}

/// Closing refuses requests behind a pause.
#[test]
fn requests_behind_a_pause_are_refused_when_the_limiter_is_closed() {
    on_model(async |model| {
        let limiter = &fleet(&model, "token_bucket 10/s burst 10", 1, false)[0];
        limiter.pause(Pause::lasting(Duration::MAX)).await.unwrap();
        let tasks: Vec<_> = (0..300).map(|_| wait(limiter, 1)).collect();
        sleep(100 * MS).await;
        assert_eq!(AnyLimiter::from(limiter.clone()).close(), Ok(true));
        for task in tasks {
            assert_eq!(task.await.unwrap(), Err(Refusal::Closed));
        }
    });
}

/// Requests were served after their maximum waits when a pause was extended.
#[test]
fn a_request_is_refused_at_the_end_of_its_wait_in_a_pause_that_is_prolonged() {
    for leased in [false, true] {
        on_model(async move |model| {
            let limiter = &fleet(&model, "token_bucket 100/s burst 20", 1, leased)[0];
            let _ = wait(limiter, 1).await.unwrap().unwrap();
            limiter.pause(Pause::lasting(2 * SECOND).keep_permits()).await.unwrap();
            let asked = Instant::now();
            let tasks: Vec<_> =
                (0..3).map(|_| wait(limiter, Request::permits(1).within(3 * SECOND))).collect();
            sleep(SECOND).await;
            limiter.pause(Pause::lasting(9 * SECOND)).await.unwrap();
            for task in tasks {
                let refusal = task.await.unwrap().unwrap_err();
                assert!(matches!(refusal, Refusal::Paused { .. }), "{refusal:?}");
            }
            assert!(asked.elapsed() <= 3010 * MS, "{:?}", asked.elapsed());
        });
    }
}

/// Checks that requests are granted in their order of arrival.
async fn assert_in_order(tasks: Vec<JoinHandle<Result<Instant, Refusal>>>, context: &str) {
    let mut last = Instant::now();
    for (number, task) in tasks.into_iter().enumerate() {
        let at = task.await.unwrap().unwrap();
        assert!(at + MS >= last, "{context}: {number} is {:?} before an earlier one", last - at);
        last = last.max(at);
    }
}

/// If another process had ended the pause, newcomers in the round trip in which a process learned
/// of that were granted before its requests that waited.
#[test]
fn newcomers_stand_behind_requests_that_wait_for_the_end_of_a_pause() {
    for (line, leased) in LINES.into_iter().flat_map(|line| [(line, false), (line, true)]) {
        on_model(async move |model| {
            let limiters = fleet(&model, line, 2, leased);
            let _ = wait(&limiters[0], 1).await.unwrap().unwrap();
            sleep(2 * SECOND).await;
            limiters[0].pause(Pause::lasting(5 * SECOND).keep_permits()).await.unwrap();
            sleep(10 * MS).await;
            let mut tasks: Vec<_> = (0..200).map(|_| wait(&limiters[0], 1)).collect();
            sleep(1050 * MS).await;
            assert_eq!(limiters[1].resume().await, Ok(true));
            tasks.extend((0..100).map(|_| wait(&limiters[0], 1)));
            assert_in_order(tasks, &format!("{line}, leased {leased}")).await;
        });
    }
}

/// They ask again in steps, and newcomers come between the steps.
#[test]
fn a_long_line_behind_a_pause_keeps_its_order() {
    for ends_early in [true, false] {
        on_model(async move |model| {
            let [limiter] = &fleet(&model, "token_bucket 1000/s burst 10", 1, false)[..] else {
                panic!("one")
            };
            limiter.pause(Pause::lasting(SECOND)).await.unwrap();
            let mut tasks = Vec::new();
            for i in 0..1500 {
                tasks.push(wait(limiter, 1));
                if i % 100 == 0 {
                    sleep(MS).await;
                }
            }
            sleep(if ends_early { 300 * MS } else { 900 * MS }).await;
            let resumed = limiter.clone();
            let resumed = tokio::spawn(async move { ends_early && resumed.resume().await.unwrap() });
            for _ in 0..300 {
                tasks.push(wait(limiter, 1));
                sleep(MS).await;
            }
            assert_eq!(resumed.await.unwrap(), ends_early);
            let mut granted = Vec::new();
            for task in tasks {
                granted.push(task.await.unwrap().unwrap());
            }
            let first = granted.iter().zip(&granted[1..]).position(|(one, next)| next < one);
            assert_eq!(first, None, "ends early {ends_early}");
        });
    }
}

/// The only request that waits asks whether the pause has ended, while newcomers come.
#[test]
fn newcomers_stand_behind_a_request_that_asks_whether_a_pause_has_ended() {
    for (line, step) in LINES.into_iter().flat_map(|line| (0..8).map(move |step| (line, step))) {
        on_model(async move |model| {
            let limiters = fleet(&model, line, 2, false);
            limiters[0].pause(Pause::lasting(5 * SECOND).keep_permits()).await.unwrap();
            let first = wait(&limiters[0], 1);
            let other = limiters[1].clone();
            tokio::spawn(async move {
                sleep(SECOND + step * MS / 4).await;
                assert_eq!(other.resume().await, Ok(true));
            });
            // The request asks 4 ms after the pause has begun, and every second.
            sleep(SECOND + 3 * MS).await;
            let newcomers: Vec<_> = (0..100).map(|_| wait(&limiters[0], 1)).collect();
            let first = first.await.unwrap().unwrap();
            for (number, task) in newcomers.into_iter().enumerate() {
                let at = task.await.unwrap().unwrap();
                assert!(at >= first, "{line}, {step}: {number} is {:?} earlier", first - at);
            }
        });
    }
}

/// A pause ends by itself, between the call of newcomers and its arrival at the server.
#[test]
fn newcomers_of_the_last_round_trip_of_a_pause_stand_behind_requests_that_wait() {
    for (line, step) in LINES.into_iter().flat_map(|line| (0..8).map(move |step| (line, step))) {
        on_model(async move |model| {
            let limiters = fleet(&model, line, 1, false);
            // It ends after 101 ms by the time of this process.
            limiters[0].pause(Pause::lasting(100 * MS).keep_permits()).await.unwrap();
            let mut tasks: Vec<_> = (0..100).map(|_| wait(&limiters[0], 1)).collect();
            sleep(97 * MS + step * MS / 2).await;
            tasks.extend((0..100).map(|_| wait(&limiters[0], 1)));
            assert_in_order(tasks, &format!("{line}, {step}")).await;
        });
    }
}

/// A request that does not wait took the available permit of a request that waited for the end of
/// the pause.
#[test]
fn a_request_that_does_not_wait_overtakes_none_behind_a_pause_that_has_ended() {
    let lines =
        ["token_bucket 50/s burst 1", "sliding_log 2/1s", "fixed_window 2/1s", "sliding_estimate 2/1s"];
    for (line, step) in lines.into_iter().flat_map(|line| (0..40).map(move |step| (line, step))) {
        on_model(async move |model| {
            let limiter = &fleet(&model, line, 1, false)[0];
            let _ = wait(limiter, 1).await.unwrap().unwrap();
            sleep(5 * SECOND).await;
            limiter.pause(Pause::lasting(200 * MS).keep_permits()).await.unwrap();
            let waits = [wait(limiter, 1), wait(limiter, 1)];
            sleep(194 * MS + step * MS / 5).await;
            let newcomer = AnyLimiter::from(limiter.clone()).acquire_now([]).await;
            let at = Instant::now();
            for task in waits {
                let granted = task.await.unwrap().unwrap();
                assert!(newcomer.is_err() || granted <= at, "{line}, {step}: {:?} later", granted - at);
            }
        });
    }
}

/// A debit in a pause of a window counted as of the predicted end of the pause, and so did all
/// requests behind it: a limit that was paused without an end, and resumed, granted nothing for
/// twenty years.
#[test]
fn a_debit_in_a_pause_counts_when_it_is_made() {
    let windows = [
        "fixed_window 100/d",
        "fixed_window 100/d from_first_grant",
        "sliding_window 100/d cells 10",
        "sliding_estimate 100/d",
        "sliding_log 100/d",
    ];
    for (line, pause) in windows.into_iter().flat_map(|line| [(line, SECOND), (line, Duration::MAX)]) {
        on_model(async move |model| {
            let limiter = &fleet(&model, line, 1, false)[0];
            let any = AnyLimiter::from(limiter.clone());
            let _ = any.acquire_now(20).await.unwrap();
            limiter.pause(Pause::lasting(pause)).await.unwrap();
            limiter.debit(30).await.unwrap();
            let mut reservation = any.non_blocking().reserve(5).unwrap();
            assert!(timeout(MS * 10, &mut reservation).await.is_err());
            reservation.settle(7).unwrap();
            assert_eq!(limiter.keep_at_most("limit", 40).await, Ok(3), "{line}, {pause:?}");
            match pause < Duration::MAX {
                true => sleep(pause).await,
                false => assert_eq!(limiter.resume().await, Ok(true)),
            }
            let status = limiter.status().await.unwrap();
            assert_eq!(status.members[0].1.available, 40, "{line}, {pause:?}");
            let _ = any.acquire_now(40).await.unwrap();
            assert!(any.acquire_now(1).await.is_err(), "{line}, {pause:?}");
        });
    }
    for line in LINES {
        on_model(async move |model| {
            let limiter = &fleet(&model, line, 1, false)[0];
            limiter.pause(Pause::lasting(Duration::MAX)).await.unwrap();
            limiter.debit(1).await.unwrap();
            assert_eq!(limiter.resume().await, Ok(true));
            sleep(2 * SECOND).await;
            let _ = wait(limiter, 1).await.unwrap().unwrap();
        });
    }
}

/// A request that was accepted for the end of a pause was refused when it asked again, a round trip
/// later.
#[test]
fn a_request_that_waits_for_the_end_of_a_pause_is_refused_at_once_or_granted() {
    for (way, line) in LINES.into_iter().flat_map(|line| [(MS, line), (10 * MS, line)]) {
        for within in (250..=310).map(|within| within * MS) {
            run(async move {
                let model = Model::new(1, Network::steady(way));
                let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
                let limiter = store.limiter("all").limit("limit", line);
                let limiter = &limiter.build().unwrap();
                limiter.pause(Pause::lasting(300 * MS).keep_permits()).await.unwrap();
                let asked = Instant::now();
                let answer = wait(limiter, Request::permits(1).within(within)).await.unwrap();
                let took = asked.elapsed();
                let is_right = answer.is_ok() || took <= 4 * way + MS;
                assert!(is_right, "{line}, within {within:?}: {answer:?} after {took:?}");
            });
        }
    }
}

/// Regression: such a request was refused at the end of its maximum wait, as if all permits were in
/// use, and the limit reported that no permit would ever be free.
#[test]
fn a_counting_limit_refuses_at_once_what_cannot_wait_for_the_end_of_its_pause() {
    run(async {
        let model = Model::new(1, Network::steady(MS / 2));
        let open = || {
            let store = model.open(Store::builder("redis://model")).unwrap();
            store.counting("jobs", 3).build().unwrap()
        };
        let (ours, theirs) = (open(), open());
        // The connections are open.
        ours.status().await.unwrap();
        theirs.status().await.unwrap();
        ours.pause_for(500 * MS).await.unwrap();
        let ends = Instant::now() + 499 * MS;
        for jobs in [&ours, &theirs] {
            let request = AllRequest::new().within(100 * MS).with_left();
            let came = Instant::now();
            let refusal = AnyLimiter::from(jobs.clone()).acquire_many(request).await.unwrap_err();
            assert!(came.elapsed() <= 2 * MS);
            let Some(Refusal::Paused { retry_after }) = refusal.refusal() else { panic!("{refusal:?}") };
            let expected = (ends - came) - 100 * MS;
            assert!(retry_after.as_duration().abs_diff(expected) <= MS, "{retry_after:?} for {expected:?}");
            let of_refusal = (refusal.left().unwrap().members[0].1, ends - Instant::now());
            // The next call withdraws the request at the store.
            sleep(2 * MS).await;
            let of_store = (jobs.status().await.unwrap().members[0].1, ends - Instant::now());
            for (status, rest) in [of_refusal, of_store] {
                assert_eq!((status.limit, status.available), (3, 0));
                for told in [status.next_in, status.full_in, status.paused_for] {
                    assert!(told.abs_diff(rest) <= MS, "{told:?} for {rest:?}");
                }
            }
            // The pause ends before the maximum wait.
            let late = AllRequest::new().within(ends - Instant::now() + 2 * MS);
            let waits = AnyLimiter::from(jobs.clone()).acquire_many(late);
            assert!(timeout(50 * MS, waits).await.is_err(), "it waits");
            sleep(2 * MS).await;
        }
    });
}

/// Regression: a refused request was told that no permit is free.
#[test]
fn a_refused_request_for_permits_in_use_is_told_how_many_are_free() {
    run(async {
        let model = Model::new(1, Network::steady(MS / 2));
        let store = model.open(Store::builder("redis://model")).unwrap();
        let jobs = AnyLimiter::from(store.counting("jobs", 3).build().unwrap());
        let held = jobs.acquire().await.unwrap();
        let three = || AllRequest::from(3).with_left();
        for refused in [jobs.acquire_now(three()), jobs.acquire_many(three().within(50 * MS))] {
            let refusal = refused.await.unwrap_err();
            assert_eq!(refusal.refusal(), Some(Refusal::InUse { limit: 3 }));
            let status = refusal.left().unwrap().members[0].1;
            assert_eq!((status.available, status.next_in), (2, Duration::ZERO));
        }
        let two = jobs.acquire_now(2).await.unwrap();
        assert_eq!(two.waited(), Duration::ZERO);
        drop(held);
    });
}

/// Bug: requests for permits in use were served up to a quarter of a second after the end of a
/// pause, and until then attempts were refused as if permits were in use.
#[test]
fn the_end_of_a_pause_serves_requests_for_permits_in_use_at_once() {
    for is_resumed in [true, false] {
        on_model(async |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let jobs = store.counting("jobs", 4).build().unwrap();
            jobs.pause_for(10 * SECOND + 70 * MS).await.unwrap();
            let limiter = AnyLimiter::from(jobs.clone());
            let waits: Vec<_> = (0..2).map(|_| tokio::spawn(limiter.acquire())).collect();
            sleep(9 * SECOND).await;
            if is_resumed {
                jobs.resume().await.unwrap();
            } else {
                let refusal = AnyLimiter::from(jobs.clone()).acquire_now(1).await.unwrap_err();
                let Some(Refusal::Paused { retry_after }) = refusal.refusal() else { panic!("{refusal:?}") };
                sleep(retry_after.as_duration()).await;
            }
            let ended = Instant::now();
            let _attempt = AnyLimiter::from(jobs.clone()).acquire_now(1).await.unwrap();
            for wait in waits {
                let _held = wait.await.unwrap().unwrap();
            }
            assert!(ended.elapsed() <= 5 * MS, "{:?}, resumed: {is_resumed}", ended.elapsed());
        });
    }
}

/// Bug: the reply to a call that left before the end of a pause reported the pause, and attempts at
/// a leased limiter were refused for a second, with the rest of that pause.
#[test]
fn a_leased_limiter_that_ends_a_pause_forgets_what_was_reported_of_it() {
    run(async {
        let model = Model::new(1, Network::steady(10 * MS));
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 1000/s burst 1000").leased();
        let limiter = AnyLimiter::from(limit.build().unwrap()).non_blocking();
        limiter.pause(Pause::lasting(60 * MINUTE)).unwrap();
        sleep(2 * SECOND).await;
        let early = tokio::spawn(limiter.acquire_now(AllRequest::new().with_left()));
        settle().await;
        limiter.resume();
        early.await.unwrap().unwrap_err();
        sleep(50 * MS).await;
        let _ = limiter.acquire_now(1).await.unwrap();
    });
}

/// Bug: a request whose maximum wait ended within a round trip after a pause was decided as if the
/// store were away, so a share was granted beside all permits of the limit.
#[test]
fn a_maximum_wait_that_ends_just_after_a_pause_is_not_decided_without_the_store() {
    run(async {
        let model = Model::new(1, Network::steady(10 * MS));
        let two = WhileAway::ShareOf(2.try_into().unwrap());
        let open = || Store::builder("redis://model").timeout(100 * MS).while_away(two);
        let [theirs, ours] = [(); 2].map(|()| model.open(open()).unwrap());
        let [others, jobs] = [&theirs, &ours].map(|store| store.counting("jobs", 4).build().unwrap());
        let _held = AnyLimiter::from(others).acquire_now(4).await.unwrap();
        // A call of the usual interval may be on its way when the pause ends.
        for i in 0..10 {
            jobs.pause_for(2 * SECOND + i * 20 * MS).await.unwrap();
            let within = 2 * SECOND + (i * 20 + 10) * MS;
            let refusal = AnyLimiter::from(jobs.clone()).acquire_within(within).await.unwrap_err();
            assert!(matches!(refusal.refusal(), Some(Refusal::InUse { .. })), "{i}: {refusal:?}");
        }
        assert_eq!(ours.counts().degraded, 0);
    });
}

/// Bug: the reply to the end of a pause gave the lease back that the queue had just got, and waits
/// were served a round trip later.
#[test]
fn the_end_of_a_pause_books_one_lease_for_requests_that_wait() {
    run(async {
        let model = Model::new(1, Network::steady(10 * MS));
        let store = Store::builder("redis://model").while_away(WhileAway::Wait).timeout(100 * MS);
        let store = model.open(store).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 1000/s burst 1000").leased();
        let limiter = AnyLimiter::from(limit.build().unwrap()).non_blocking();
        for _ in 0..2000 {
            let _ = limiter.acquire().await.unwrap();
        }
        limiter.pause(Pause::lasting(60 * MINUTE)).unwrap();
        sleep(2 * SECOND).await;
        let waits: Vec<_> = (0..20).map(|_| tokio::spawn(limiter.acquire())).collect();
        sleep(3 * SECOND).await;
        let (before, ended) = (store.lease_counts(), Instant::now());
        limiter.resume();
        for wait in waits {
            let _ = wait.await.unwrap().unwrap();
        }
        assert!(ended.elapsed() <= 21 * MS, "{:?}", ended.elapsed());
        let counts = store.lease_counts();
        assert_eq!((counts.used, counts.returned), (before.used + 20, before.returned));
    });
}

/// Bug: the end of a pause, which the store did not confirm, let newcomers have permits of the
/// share, and requests that had come before waited on.
#[test]
fn a_process_that_ends_a_pause_while_the_store_is_away_lets_its_requests_go_on() {
    for is_awaited in [true, false] {
        on_model(async move |model| {
            let limit = one_of_two(&model).limiter("all").limit("limit", "token_bucket 100/s burst 10");
            let limiter = limit.build().unwrap();
            limiter.pause(Pause::lasting(10 * MINUTE)).await.unwrap();
            let waits: Vec<_> = (0..30).map(|_| wait(&limiter, 1)).collect();
            sleep(100 * MS).await;
            model.stop(true);
            match is_awaited {
                true => assert!(limiter.resume().await.is_err()),
                false => _ = AnyLimiter::from(limiter.clone()).non_blocking().resume(),
            }
            let ended = Instant::now();
            for wait in waits {
                // A share grants 50 per second.
                let at = wait.await.unwrap().unwrap();
                assert!(at <= ended + 2 * SECOND, "{:?}", at - ended);
            }
        });
    }
}

/// Bug: permits of a share did not report the time that their request had waited for the end of a
/// pause.
#[test]
fn permits_of_a_share_report_the_wait_for_the_end_of_a_pause() {
    for while_away in [WhileAway::ShareOf(2.try_into().unwrap()), WhileAway::Open] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let limiter = store.limiter("all").limit("limit", "token_bucket 4/s burst 8").build().unwrap();
            let limiter = AnyLimiter::from(limiter);
            drop(limiter.acquire_now(1).await.unwrap());
            model.stop(true);
            // The first call fails, and the first period of the share ends.
            let at_once = limiter.acquire_within(MINUTE).await;
            assert!(at_once.is_ok_and(|permits| permits.waited() <= 2 * SECOND));
            sleep(3 * SECOND).await;
            let at_once = limiter.acquire_within(MINUTE).await.unwrap();
            assert_eq!(at_once.waited(), Duration::ZERO);
            limiter.pause(Pause::lasting(MINUTE)).unwrap();
            let asked = Instant::now();
            let permits = limiter.acquire().await.unwrap();
            let (took, waited) = (asked.elapsed(), permits.waited());
            assert!(permits.is_degraded() && took >= MINUTE - MS, "{took:?}");
            assert!(waited <= took && waited + SECOND >= took, "{waited:?} of {took:?}");
        });
    }
}

/// Bug: requests waited on behind such a pause if another limiter of their process had ended it, or
/// if the future that ended it was dropped.
#[test]
fn the_end_of_a_pause_while_the_store_is_away_lets_all_requests_of_the_process_go_on() {
    for is_dropped in [true, false] {
        on_model(async move |model| {
            let store = one_of_two(&model);
            let limit =
                || store.limiter("all").limit("limit", "token_bucket 100/s burst 10").build().unwrap();
            let (first, second) = (limit(), limit());
            first.pause(Pause::lasting(10 * MINUTE)).await.unwrap();
            let waits: Vec<_> = (0..30).map(|_| wait(&second, 1)).collect();
            sleep(100 * MS).await;
            model.stop(true);
            match is_dropped {
                true => assert!(timeout(20 * MS, second.resume()).await.is_err()),
                false => assert!(first.resume().await.is_err()),
            }
            let ended = Instant::now();
            for wait in waits {
                // They ask every second, and a share grants 50 per second.
                let at = wait.await.unwrap().unwrap();
                assert!(at <= ended + 3 * SECOND, "{is_dropped}: {:?}", at - ended);
            }
        });
    }
}

/// Bug: a leased limiter that had ended a pause, and had no reply, refused attempts as paused for
/// a second.
#[test]
fn a_leased_limiter_that_ends_a_pause_while_the_store_is_away_forgets_what_was_reported_of_it() {
    on_model(async |model| {
        let limiter = one_of_two(&model).limiter("all").limit("limit", "token_bucket 4/s burst 8").leased();
        let limiter = limiter.build().unwrap();
        limiter.pause(Pause::lasting(10 * MINUTE)).await.unwrap();
        let any = AnyLimiter::from(limiter.clone());
        let refusal = any.acquire_now(1).await.unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
        model.stop(true);
        assert!(limiter.resume().await.is_err());
        if let Err(refusal) = any.acquire_now(1).await {
            assert!(!matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
        }
    });
}

/// Bug: if the message that ended a pause was lost, the store predicted the requests that asked
/// again a second time, behind themselves, and refused those with a maximum wait.
#[test]
fn requests_that_ask_again_in_a_pause_that_goes_on_keep_their_times() {
    on_model(async |model| {
        let store = Store::builder("redis://model").while_away(WhileAway::Wait);
        let limiter = model.open(store).unwrap().limiter("all").limit("limit", "token_bucket 10/s burst 10");
        let limiter = limiter.build().unwrap();
        limiter.pause(Pause::lasting(60 * SECOND).keep_permits()).await.unwrap();
        let ask = || Request::permits(1).within(62 * SECOND + 500 * MS);
        let waits: Vec<_> = (0..30).map(|_| wait(&limiter, ask())).collect();
        sleep(100 * MS).await;
        model.lose_calls(true);
        assert!(timeout(20 * MS, limiter.resume()).await.is_err());
        sleep(3 * SECOND).await;
        model.lose_calls(false);
        for wait in waits {
            assert!(wait.await.unwrap().is_ok());
        }
    });
}
