//! The policies whose permits accrue at a rate.

use std::time::Duration;

use tidegate::{LeakyBucket, Rate, SmoothBursty, SmoothWarmingUp, TokenBucket};

use crate::course::{Course, Patience, total};
use crate::demand::{Demand, Request, seconds};
use crate::facts::Facts;
use crate::plot::{Axis, Curve, Panel, Picture, Role};
use crate::{Drawing, Drawn};

const RIGHT: f64 = 12.0;

pub(crate) fn smooth_bursty() -> Drawn {
    let policy = SmoothBursty::new(Rate::per_second(10));
    let demand = Demand::default().burst(2.0, 20).large(5.0, 40).steady(6.0, 9.0, 5);
    let course = Course::new(policy, &demand, Patience::Endless, RIGHT)?;
    let mut facts = Facts::default();
    let saved = facts.claim(11, "at 2 s, of the burst of 20", course.at(2.0));
    facts.claim(9, "after 2 s, before 3 s", course.after(2.0, 3.0));
    let large = facts.claim(40, "at 5 s, by one request", course.at(5.0));
    facts.claim(0, "between 5 s and 8 s", course.after(5.0, 8.0));
    facts.claim(1, "at 8 s", course.at(8.0));
    let caption = format!(
        "After idling, {saved} permits pass at once: those of the second that was saved, and one. Then one each 0.1 \
         s. At 5 s a single request for {large} passes at once: 10 of them were saved, and for the other 30 the next \
         one has to wait, until 8 s."
    );
    let limit = Curve::line(Role::Limit, "10/s", vec![(2.0, 11.0), (RIGHT, 111.0)]);
    let panel = sums(&course, 125.0, vec![limit]);
    let title = "SmoothBursty: 10/s, saves 1 s, callers wait";
    Ok(Drawing::new("smooth_bursty", Picture::of(title, panel, caption), facts))
}

pub(crate) fn smooth_warming_up() -> Drawn {
    let (right, width) = (24.0, 0.25);
    let policy = SmoothWarmingUp::new(Rate::per_second(100), Duration::from_secs(4));
    let demand = Demand::default().steady(0.0, 12.0, 80).steady(17.0, right, 80);
    let course = Course::new(policy, &demand, Patience::Endless, right)?;
    let mut facts = Facts::default();
    let first = course.gaps().next().unwrap_or_default();
    facts.claim(29, "ms from the first permit to the second, 10 when warm", milliseconds(first));
    facts.claim(200, "in the first 4 s, half of 100/s", course.between(0.0, 4.0));
    facts.claim(100, "from 4 s to 5 s, warm", course.between(4.0, 5.0));
    facts.claim(80, "from 11 s to 12 s, when nobody waits", course.between(11.0, 12.0));
    facts.claim(200, "from 17 s to 21 s, after idling", course.between(17.0, 21.0));
    let caption = "Cold, it begins at a third of the rate, and after 4 s of demand it is warm. Those who had to wait \
                   are then served at the full rate, until nobody waits any more. Idling from 12 s to 17 s makes it \
                   cold again.";
    let panel = Panel {
        x: Axis::Seconds,
        right,
        top: 125.0,
        unit: "permits per second".into(),
        curves: vec![
            Curve::filled(Role::Demand, "asked for", course.bars(&course.asked, width)),
            Curve::line(Role::Limit, "limit, 100/s", vec![(0.0, 100.0), (right, 100.0)]),
            Curve::line(Role::Granted, "let through", course.bars(&course.granted, width)),
        ],
        bands: Vec::new(),
    };
    let title = "SmoothWarmingUp: 100/s after a warm-up of 4 s, callers wait";
    Ok(Drawing::new("smooth_warming_up", Picture::of(title, panel, caption.into()), facts))
}

pub(crate) fn token_bucket() -> Drawn {
    let policy = TokenBucket::new(Rate::per_second(10), 20);
    let demand = Demand::default().burst(2.0, 40).steady(2.1, 7.0, 20).burst(10.0, 40);
    let course = Course::new(policy, &demand, Patience::None, RIGHT)?;
    let mut facts = Facts::default();
    let burst = facts.claim(20, "at 2 s, of the burst of 40", course.at(2.0));
    for second in [2.0, 3.0, 4.0, 5.0] {
        let next = second + 1.0;
        let found = course.after(second, next) + course.at(next);
        facts.claim(10, format!("after {second} s, until {next} s"), found);
    }
    facts.claim(20, "at 10 s, of the burst of 40", course.at(10.0));
    let caption = format!(
        "After idling the bucket is full: {burst} permits pass at once. Then 10 a second, as tokens come in; the rest \
         is refused. Idling from 7 s fills the bucket again, and no more than that: at 10 s the same {burst}."
    );
    let limit = Curve::line(Role::Limit, "limit, 20 + 10/s", vec![(2.0, 20.0), (RIGHT, 120.0)]);
    let panel = sums(&course, 190.0, vec![limit]);
    let title = "TokenBucket: 10/s, burst 20, callers go away if refused";
    Ok(Drawing::new("token_bucket", Picture::of(title, panel, caption), facts))
}

pub(crate) fn token_bucket_in_steps() -> Drawn {
    let policy = TokenBucket::new("20/2s".parse()?, 20).interval_refill()?;
    let demand = Demand::default().burst(0.0, 40).steady(0.1, 8.0, 10);
    let course = Course::new(policy, &demand, Patience::Endless, RIGHT)?;
    let mut facts = Facts::default();
    for step in [0.0, 2.0, 4.0, 6.0, 8.0] {
        facts.claim(20, format!("at {step} s"), course.at(step));
        facts.claim(0, format!("between {step} s and {} s", step + 2.0), course.after(step, step + 2.0));
    }
    let caption = "Permits come in 20 at once, each 2 s. 20 are there at the start, and half of the first 40 requests \
                   take them. All others wait for a step, and each step serves 20 of them together, in order.";
    let limit = Curve::line(Role::Limit, "limit, 20 + 10/s", vec![(0.0, 20.0), (RIGHT, 140.0)]);
    let panel = sums(&course, 150.0, vec![limit]);
    let title = "TokenBucket in steps: 20 each 2 s, burst 20, callers wait";
    Ok(Drawing::new("token_bucket_in_steps", Picture::of(title, panel, caption.into()), facts))
}

pub(crate) fn leaky_bucket() -> Drawn {
    let policy = LeakyBucket::new(Rate::per_second(10)).capacity(20);
    let demand = Demand::default().burst(1.0, 40).steady(5.0, 8.0, 20);
    let course = Course::new(policy, &demand, Patience::Endless, RIGHT)?;
    let refused = |from: f64, until: f64| {
        let times = seconds(from)..seconds(until);
        let count =
            |requests: &[Request]| total(requests.iter().filter(|request| times.contains(&request.at)));
        count(&course.asked) - count(&course.let_in)
    };
    let mut facts = Facts::default();
    facts.claim(1, "out at 1 s", course.at(1.0));
    let overflow = facts.claim(19, "refused of the burst of 40", refused(1.0, 1.1));
    let least = course.gaps().min().unwrap_or_default();
    facts.claim(100, "least time between two permits, in ms", milliseconds(least));
    facts.claim(0, "refused from 5 s to 7 s", refused(5.0, 7.0));
    facts.claim(10, "refused of the 20 from 7 s to 8 s", refused(7.0, 8.0));
    let caption = format!(
        "However they come in, one goes out each 0.1 s, after idling, too. Of a burst of 40 one passes, 20 find room \
         in the bucket, and {overflow} overflow: they are refused at once. At 20/s from 5 s the bucket is full after \
         2 s, and every other one is refused. What is between \
         the orange and the green curve is the water."
    );
    let panel = sums(
        &course,
        125.0,
        vec![
            Curve::line(Role::Limit, "limit, 1 + 10/s", vec![(1.0, 1.0), (RIGHT, 111.0)]),
            Curve::line(Role::Second, "let into the bucket", course.sum(&course.let_in)),
        ],
    );
    let title = "LeakyBucket: 10/s, room for 20, callers wait in the bucket";
    Ok(Drawing::new("leaky_bucket", Picture::of(title, panel, caption), facts))
}

/// Creates a panel with the sums of the demand and of the granted permits, and further curves.
fn sums(course: &Course, top: f64, further: Vec<Curve>) -> Panel {
    let mut curves = vec![Curve::filled(Role::Demand, "asked for", course.sum(&course.asked))];
    curves.extend(further);
    curves.push(Curve::line(Role::Granted, "let through", course.sum(&course.granted)));
    let unit = "permits so far".into();
    Panel { x: Axis::Seconds, right: RIGHT, top, unit, curves, bands: Vec::new() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
