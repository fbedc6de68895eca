//! The policies that count permits in a window, with the worked examples of the literature.

use std::error::Error;

use tidegate::{FixedWindow, Policy, Rate, SlidingEstimate, SlidingLog, SlidingWindow};

use crate::course::{Course, Patience};
use crate::demand::{Demand, seconds};
use crate::facts::Facts;
use crate::plot::{Axis, Band, Curve, Panel, Picture, Role};
use crate::{Drawing, Drawn};

const RIGHT: f64 = 150.0;
const LIMIT: f64 = 100.0;
const WINDOW: f64 = 60.0;

/// The limit of all of them.
fn limit() -> Rate {
    Rate::per_minute(100)
}

/// The two worked examples, each with a new limiter.
struct Examples {
    /// 10/s around the full minute.
    edge: Course,
    /// 20/s from the middle of a cell of 10 s.
    cell: Course,
    facts: Facts,
}

impl Examples {
    /// Runs the examples. `edge` is the number of permits between 0:50 and 1:10 of the first
    /// example, `cell` the number between 0:05 and 1:05 of the second.
    fn run<P: Policy + Clone>(policy: &P, edge: u64, cell: u64) -> Result<Examples, Box<dyn Error>> {
        let run = |from, per_second| {
            let demand = Demand::default().steady(from, RIGHT, per_second);
            Course::new(policy.clone(), &demand, Patience::None, RIGHT)
        };
        let mut examples = Examples { edge: run(50.0, 10)?, cell: run(5.0, 20)?, facts: Facts::default() };
        let Examples { edge: first, cell: second, facts } = &mut examples;
        facts.claim(edge, "10/s from 0:50: from 0:50 to 1:10", first.between(50.0, 70.0));
        facts.claim(cell, "20/s from 0:05: from 0:05 to 1:05", second.between(5.0, 65.0));
        Ok(examples)
    }
}

pub(crate) fn fixed_window() -> Drawn {
    let (edge, cell) = (200, 200);
    let Examples { edge: course, mut facts, .. } = Examples::run(&FixedWindow::new(limit()), edge, cell)?;
    facts.claim(100, "10/s from 0:50: from 0:50 to 1:00", course.between(50.0, 60.0));
    let caption = format!(
        "10/s from 0:50: the window that ends at 1:00 has 100 permits left, and so has the one that begins then. \
         Twice the limit, {edge} permits, pass between 0:50 and 1:10. At 1:00 the window forgets all that it has \
         counted."
    );
    let band = Band { span: 50.0..70.0, label: format!("{edge} in 20 s") };
    Ok(picture("fixed_window", "FixedWindow: 100 a minute", &course, band, caption, facts))
}

pub(crate) fn sliding_window() -> Drawn {
    let (edge, cell) = (100, 200);
    let policy = SlidingWindow::new(limit(), 6);
    let Examples { cell: course, mut facts, .. } = Examples::run(&policy, edge, cell)?;
    facts.claim(100, "20/s from 0:05: from 0:05 to 0:10", course.between(5.0, 10.0));
    facts.claim(100, "20/s from 0:05: from 1:00 to 1:05", course.between(60.0, 65.0));
    let most = facts.claim(100, "most in any 50 s", course.most_in(50.0));
    let caption = format!(
        "Cells of 10 s, and 20/s from the middle of one: the first 100 are let through by 0:10, and their whole cell \
         drops out at 1:00, 5 s early for the first of them. So {cell} pass between 0:05 and 1:05, but never more \
         than {most} in 50 s. Around the edge of a minute, with 10/s from 0:50 as for the fixed window, {edge} pass \
         between 0:50 and 1:10."
    );
    let band = Band { span: 5.0..65.0, label: format!("{cell} in 60 s") };
    Ok(picture("sliding_window", "SlidingWindow: 100 a minute, 6 cells", &course, band, caption, facts))
}

pub(crate) fn sliding_estimate() -> Drawn {
    let (edge, cell) = (116, 108);
    let policy = SlidingEstimate::new(limit());
    let Examples { edge: course, mut facts, .. } = Examples::run(&policy, edge, cell)?;
    let minute = facts.claim(183, "10/s from 0:50: from 0:50 to 1:50", course.between(50.0, 110.0));
    facts.claim(minute, "10/s from 0:50: most in any minute", course.most_in(WINDOW));
    let caption = format!(
        "10/s from 0:50: no second burst at 1:00, {edge} instead of 200 pass between 0:50 and 1:10. But the estimate \
         takes the first 100 for evenly spread over their minute, so that they drop out of it evenly, too early: \
         {minute} pass between 0:50 and 1:50. The error is the gap between the two curves of the lower panel."
    );
    let band = Band { span: 50.0..110.0, label: format!("{minute} in 60 s") };
    Ok(picture("sliding_estimate", "SlidingEstimate: 100 a minute", &course, band, caption, facts))
}

pub(crate) fn sliding_log() -> Drawn {
    let (edge, cell) = (100, 100);
    let Examples { cell: course, edge: other, mut facts } =
        Examples::run(&SlidingLog::new(limit()), edge, cell)?;
    let most = course.most_in(WINDOW).max(other.most_in(WINDOW));
    let most = facts.claim(100, "most in any minute, of both", most);
    let again = course.granted.iter().zip(course.granted.iter().skip(100)).map(|(old, new)| new.at - old.at);
    facts.claim(
        0,
        "of them not a minute after the hundredth before",
        again.filter(|gap| *gap != seconds(WINDOW)).count() as u64,
    );
    let caption = format!(
        "20/s from 0:05, as for the sliding window: {cell} pass between 0:05 and 1:05, and each is available again \
         exactly a minute after it was let through. Never more than {most} in any minute, wherever it begins. With \
         10/s from 0:50, as for the fixed window, {edge} pass between 0:50 and 1:10."
    );
    let band = Band { span: 5.0..65.0, label: format!("{cell} in 60 s") };
    Ok(picture("sliding_log", "SlidingLog: 100 a minute", &course, band, caption, facts))
}

/// Creates a picture of the permits let through each second, and below it of the permits in the
/// last minute.
fn picture(
    name: &'static str,
    title: &str,
    course: &Course,
    band: Band,
    caption: String,
    facts: Facts,
) -> Drawing {
    let highest = course.bars(&course.asked, 1.0).into_iter().map(|(_, y)| y).fold(0.0, f64::max);
    let below = Band { span: band.span.clone(), label: String::new() };
    let panel = |unit: &str, top: f64, bands, curves| {
        let unit = unit.into();
        Panel { x: Axis::Minutes, right: RIGHT, top, unit, curves, bands: vec![bands] }
    };
    let each_second = vec![
        Curve::filled(Role::Demand, "asked for", course.bars(&course.asked, 1.0)),
        Curve::filled(Role::Granted, "let through", course.bars(&course.granted, 1.0)),
    ];
    let last_minute = vec![
        Curve::line(Role::Limit, "limit, 100 a minute", vec![(0.0, LIMIT), (RIGHT, LIMIT)]),
        Curve::line(Role::Granted, "let through", course.in_last(WINDOW)),
        Curve::line(Role::Second, "what the policy counts", course.counted()),
    ];
    let panels = vec![
        panel("permits per second", 1.25 * highest, band, each_second),
        panel("in the last minute", 230.0, below, last_minute),
    ];
    let title = format!("{title}, callers go away if refused");
    Drawing::new(name, Picture { title, panels, panel_height: 210, caption }, facts)
}
