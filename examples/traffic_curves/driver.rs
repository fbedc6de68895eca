//! A driver with an increasing demand, up to ten times the limit.

use crate::course::Patience;
use crate::demand::Demand;
use crate::facts::Facts;
use crate::plot::{Axis, Curve, Panel, Picture, Role};
use crate::subjects::subjects;
use crate::{Drawing, Drawn};

/// Requests per second.
const STAGES: [u32; 8] = [1, 2, 5, 10, 20, 25, 50, 100];

/// A stage is measured after this time, when saved permits are used up.
const BEFORE: f64 = 10.0;
const END: f64 = 20.0;

/// The last stage.
const MOST: f64 = 100.0;
/// The height of the picture; the demand continues beyond it.
const TOP: f64 = 25.0;

pub(crate) fn draw() -> Drawn {
    let mut facts = Facts::default();
    let mut curves = Vec::new();
    for subject in subjects()? {
        let mut points = vec![(0.0, 0.0)];
        for asked in STAGES {
            let demand = Demand::default().steady(0.0, END, asked);
            let course = subject.run(&demand, Patience::Endless, END)?;
            let found = course.between(BEFORE, END);
            let claimed = subject.sustained.min(10 * u64::from(asked));
            facts.claim(claimed, format!("{}: asked {asked}/s, in 10 s", subject.title), found);
            points.push((f64::from(asked), found as f64 / 10.0));
        }
        let (role, label) = match subject.sustained {
            100 => (Role::Granted, "let through by every other policy"),
            _ => (Role::Second, "let through by SlidingEstimate"),
        };
        curves.push(Curve::line(role, label, points));
    }
    let asked = vec![(0.0, 0.0), (TOP, TOP), (MOST, TOP)];
    let mut below = vec![
        Curve::filled(Role::Demand, "asked for", asked),
        Curve::line(Role::Limit, "limit, 10/s", vec![(0.0, 10.0), (MOST, 10.0)]),
    ];
    below.extend(curves);
    let caption = "Asked for 1, 2, 5, 10, 20, 25, 50 and 100 a second, at a limit of 10/s, every policy lets through \
                   1, 2, 5, and then 10 a second. Only SlidingEstimate lets through 9.5, 19 of 20 in a window: the \
                   last one is due as the window ends, and counts in the next. Each stage is measured for 10 s, after \
                   10 s that use up what was saved.";
    let panel = Panel {
        x: Axis::Asked,
        right: MOST,
        top: TOP,
        unit: "let through, per second".into(),
        curves: below,
        bands: Vec::new(),
    };
    let title = "Every policy: 10/s, callers wait";
    Ok(Drawing::new("driver", Picture::of(title, panel, caption.into()), facts))
}
