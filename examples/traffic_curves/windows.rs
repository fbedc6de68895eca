//! The policies that count permits in a window, with the worked examples of the literature.

use std::error::Error;

use tidegate::{FixedWindow, Policy, Rate, SlidingEstimate, SlidingLog, SlidingWindow};

use crate::Drawing;
use crate::course::{Course, Patience};
use crate::demand::Demand;
use crate::facts::Facts;
use crate::plot::{Axis, Band, Curve, Panel, Picture, Role};

type Drawn = Result<Drawing, Box<dyn Error>>;

const RIGHT: f64 = 150.0;
const LIMIT: f64 = 100.0;
const WINDOW: f64 = 60.0;

/// What all of them are set to.
fn limit() -> Rate {
    Rate::per_minute(100)
}

/// 10/s around the full minute.
fn around_the_edge(policy: impl Policy) -> Result<Course, Box<dyn Error>> {
    run(policy, 50.0, 10)
}

/// 20/s from the middle of a cell of 10 s.
fn from_within_a_cell(policy: impl Policy) -> Result<Course, Box<dyn Error>> {
    run(policy, 5.0, 20)
}

fn run(policy: impl Policy, from: f64, per_second: u32) -> Result<Course, Box<dyn Error>> {
    let demand = Demand::default().steady(from, RIGHT, per_second);
    Ok(Course::new(policy, &demand, Patience::None, RIGHT)?)
}

pub(crate) fn fixed_window() -> Drawn {
    let course = around_the_edge(FixedWindow::new(limit()))?;
    let mut facts = Facts::default();
    let edge = facts.claim(200, "from 0:50 to 1:10", course.between(50.0, 70.0));
    facts.claim(200, "most in any minute", course.most_in(WINDOW).1);
    let caption = format!(
        "10/s from 0:50: the window that ends at 1:00 has 100 permits left, and so has the one that begins then. Twice the \
         limit, {edge} permits, pass between 0:50 and 1:10. The window forgets at 1:00 all that it has counted."
    );
    let band = Band { span: 50.0..70.0, label: format!("{edge} in 20 s") };
    Ok(picture("fixed_window", "FixedWindow: 100 a minute", &course, band, caption, facts))
}

pub(crate) fn sliding_estimate() -> Drawn {
    let course = around_the_edge(SlidingEstimate::new(limit()))?;
    let mut facts = Facts::default();
    let edge = facts.claim(116, "from 0:50 to 1:10", course.between(50.0, 70.0));
    let minute = facts.claim(183, "from 0:50 to 1:50", course.between(50.0, 110.0));
    facts.claim(99, "from 1:00 to 2:00", course.between(60.0, 120.0));
    let caption = format!(
        "10/s from 0:50: no second burst at 1:00, {edge} instead of 200 pass between 0:50 and 1:10. But the estimate takes the \
         first 100 for evenly spread over their minute, so that they drop out of it evenly, too early: {minute} pass \
         between 0:50 and 1:50. The error is the gap between the two curves below."
    );
    let band = Band { span: 50.0..110.0, label: format!("{minute} in 60 s") };
    Ok(picture("sliding_estimate", "SlidingEstimate: 100 a minute", &course, band, caption, facts))
}

pub(crate) fn sliding_window() -> Drawn {
    let (cells, edge) = (SlidingWindow::new(limit(), 6), SlidingWindow::new(limit(), 6));
    let (course, edge) = (from_within_a_cell(cells)?, around_the_edge(edge)?);
    let mut facts = Facts::default();
    let minute = facts.claim(200, "from 0:05 to 1:05", course.between(5.0, 65.0));
    facts.claim(100, "most in any 50 s", course.most_in(50.0).1);
    let edge = facts.claim(100, "with 10/s from 0:50: from 0:50 to 1:10", edge.between(50.0, 70.0));
    let caption = format!(
        "Cells of 10 s, and 20/s from the middle of one: the first 100 are let through by 0:10, and their whole cell drops out at \
         1:00, 5 s early for the first of them. So {minute} pass between 0:05 and 1:05, but never more than 100 in 50 s. Around the \
         edge of a minute, with 10/s from 0:50 as for the fixed window, {edge} pass between 0:50 and 1:10."
    );
    let band = Band { span: 5.0..65.0, label: format!("{minute} in 60 s") };
    Ok(picture("sliding_window", "SlidingWindow: 100 a minute, 6 cells", &course, band, caption, facts))
}

pub(crate) fn sliding_log() -> Drawn {
    let course = from_within_a_cell(SlidingLog::new(limit()))?;
    let edge = around_the_edge(SlidingLog::new(limit()))?;
    let mut facts = Facts::default();
    let minute = facts.claim(100, "from 0:05 to 1:05", course.between(5.0, 65.0));
    let most = facts.claim(100, "most in any minute", course.most_in(WINDOW).1);
    let edge = facts.claim(100, "with 10/s from 0:50: from 0:50 to 1:10", edge.between(50.0, 70.0));
    facts.claim(100, "from 1:05 to 1:10", course.between(65.0, 70.0));
    let caption = format!(
        "20/s from 0:05, as for the sliding window: {minute} pass between 0:05 and 1:05, and each is available again exactly a minute \
         after it was let through. Never more than {most} in any minute, wherever it begins; with 10/s from 0:50, too, {edge} \
         pass between 0:50 and 1:10."
    );
    let band = Band { span: 5.0..65.0, label: format!("{minute} in 60 s") };
    Ok(picture("sliding_log", "SlidingLog: 100 a minute", &course, band, caption, facts))
}

/// What was let through each second, and below what that was in the last minute.
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
