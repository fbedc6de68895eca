//! All policies next to each other, under one demand.

use std::error::Error;

use plotters::prelude::*;

use crate::course::{Course, Patience};
use crate::demand::Demand;
use crate::facts::Facts;
use crate::plot::{Axis, Curve, Draw, Frame, Panel, Role, style};
use crate::subjects::{Burst, subjects};
use crate::{Drawing, Drawn};

const RIGHT: f64 = 14.0;

/// Panels with a title each.
pub(crate) struct Grid {
    pub(crate) title: &'static str,
    pub(crate) panels: Vec<(String, Panel)>,
    pub(crate) caption: String,
}

const COLUMNS: usize = 3;
const CELL: (u32, u32) = (330, 240);

impl Draw for Grid {
    fn svg(&self) -> Result<String, Box<dyn Error>> {
        let rows = self.panels.len().div_ceil(COLUMNS);
        let frame = Frame {
            title: self.title,
            caption: &self.caption,
            size: (CELL.0 * u32::try_from(COLUMNS)?, CELL.1 * u32::try_from(rows)?),
        };
        frame.svg(self.panels.iter().flat_map(|(_, panel)| &panel.curves), |area| {
            for (cell, (title, panel)) in area.split_evenly((rows, COLUMNS)).iter().zip(&self.panels) {
                let (above, below) = cell.split_vertically(24);
                above.draw(&Text::new(&**title, (16, 6), style(16)))?;
                panel.draw(&below)?;
            }
            Ok(())
        })
    }
}

pub(crate) fn draw() -> Drawn {
    let demand = Demand::default().burst(3.5, 40).steady(3.6, 8.0, 15).burst(11.5, 40);
    let mut facts = Facts::default();
    let mut panels = Vec::new();
    for subject in subjects()? {
        let course = subject.run(&demand, Patience::AtMost(1.0), RIGHT)?;
        let (name, Burst { at_once, soon }) = (subject.title, subject.burst);
        facts.claim(at_once, format!("{name}: at 3.5 s"), course.at(3.5));
        facts.claim(soon, format!("{name}: from 3.5 s to 5.5 s"), course.between(3.5, 5.5));
        panels.push((format!("{name}: {at_once} at once, {soon} in 2 s"), panel(&course)));
    }
    let caption = "All are set to 10/s, those with a window to 20 per 2 s, and get the same: nothing until 3.5 s, \
                   then 40 requests at once, 15/s until 8 s, nothing, and 40 at once again. Who would wait longer \
                   than 1 s is refused. The numbers are those from 3.5 s on.";
    let grid = Grid { title: "Every policy under the same demand", panels, caption: caption.into() };
    Ok(Drawing::new("overview", grid, facts))
}

fn panel(course: &Course) -> Panel {
    let curves = vec![
        Curve::filled(Role::Demand, "asked for", course.sum(&course.asked)),
        Curve::line(Role::Limit, "20 + 10/s", vec![(3.5, 20.0), (RIGHT, 125.0)]),
        Curve::line(Role::Granted, "let through", course.sum(&course.granted)),
    ];
    Panel {
        x: Axis::Seconds,
        right: RIGHT,
        top: 150.0,
        unit: "permits so far".into(),
        curves,
        bands: Vec::new(),
    }
}
