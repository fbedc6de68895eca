//! A pause of a limiter of each policy, and the permits that the limiter grants afterwards.

use std::time::Duration;

use tidegate::Pause;

use crate::course::{Course, Patience};
use crate::demand::{Demand, seconds};
use crate::facts::Facts;
use crate::overview::Grid;
use crate::plot::{Axis, Band, Curve, Panel, Role};
use crate::subjects::subjects;
use crate::{Drawing, Drawn};

const BEGIN: f64 = 1.5;
const END: f64 = 3.5;
const RIGHT: f64 = 6.5;

/// The grants of one policy's limiter at the end of the pause.
struct After {
    /// The time from the end to the first permit, in milliseconds.
    first: u64,
    /// The permits granted in the second after the end.
    soon: u64,
    /// The permits granted at the end, if the stored permits are kept.
    kept: u64,
}

/// In the order of the subjects.
const AFTER: [After; 9] = [
    After { first: 100, soon: 10, kept: 8 },
    After { first: 275, soon: 3, kept: 0 },
    After { first: 100, soon: 10, kept: 17 },
    After { first: 500, soon: 20, kept: 12 },
    After { first: 100, soon: 10, kept: 0 },
    After { first: 100, soon: 10, kept: 20 },
    After { first: 100, soon: 10, kept: 20 },
    After { first: 100, soon: 10, kept: 18 },
    After { first: 100, soon: 10, kept: 20 },
];

pub(crate) fn draw() -> Drawn {
    let demand = Demand::default().burst(1.0, 8).burst(2.0, 40).steady(END, RIGHT, 10);
    let pause = Pause::lasting(seconds(END - BEGIN));
    let mut facts = Facts::default();
    let mut panels = Vec::new();
    for (subject, After { first, soon, kept }) in subjects()?.into_iter().zip(AFTER) {
        let run = |pause| subject.run(&demand.clone().pause(BEGIN, pause), Patience::Endless, RIGHT);
        let (emptied, keeping) = (run(pause)?, run(pause.keep_permits())?);
        let name = subject.title;
        facts.claim(0, format!("{name}: in the pause"), emptied.after(BEGIN, END));
        facts.claim(0, format!("{name}, keep_permits: in the pause"), keeping.after(BEGIN, END));
        let wait = emptied.granted.iter().find_map(|grant| grant.at.checked_sub(seconds(END)));
        facts.claim(first, format!("{name}: ms to the first permit"), milliseconds(wait.unwrap_or_default()));
        facts.claim(
            soon,
            format!("{name}: in 1 s after the pause"),
            emptied.after(END, END + 1.0) + emptied.at(END + 1.0),
        );
        facts.claim(kept, format!("{name}, keep_permits: at the end"), keeping.at(END));
        panels.push((format!("{name}: keep_permits keeps {kept}"), panel(&emptied, &keeping)));
    }
    let caption = "All are set to 10/s, those with a window to 20 per 2 s. 8 requests come at 1 s, 40 come in the \
                   pause and wait, and then 10 come per second. In the pause nothing passes, and nothing comes in. \
                   Afterwards the limiter is empty: permits come one interval apart, from a bucket in steps at its \
                   next step, from a cold SmoothWarmingUp 0.275 s apart and then faster. A window spaces its grants \
                   for as long as it is, 2 s. With keep_permits the stored permits pass at the end. The permits of a \
                   window return even during the pause.";
    let title = "Every policy in a pause from 1.5 s to 3.5 s, callers wait";
    let grid = Grid { title, panels, caption: caption.into() };
    Ok(Drawing::new("pauses", grid, facts))
}

fn panel(emptied: &Course, keeping: &Course) -> Panel {
    let curves = vec![
        Curve::filled(Role::Demand, "asked for", emptied.sum(&emptied.asked)),
        Curve::line(Role::Second, "let through, with keep_permits", keeping.sum(&keeping.granted)),
        Curve::line(Role::Granted, "let through", emptied.sum(&emptied.granted)),
    ];
    Panel {
        x: Axis::Seconds,
        right: RIGHT,
        top: 80.0,
        unit: "permits so far".into(),
        curves,
        bands: vec![Band { span: BEGIN..END, label: "pause".into() }],
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
