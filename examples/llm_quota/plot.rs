//! Both budgets over time as an SVG.

use std::error::Error;
use std::time::{Duration, Instant};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::client::{Answer, Believed, Call};
use crate::server::{Left, Terms};
use crate::tenants::TENANTS;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Done = Result<(), Box<dyn Error>>;

const INK: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const BELIEVED: RGBColor = RGBColor(0x9b, 0xd3, 0xcb);
const REFUSED: RGBColor = RGBColor(0xd6, 0x45, 0x50);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
/// The colors of the marks, by tenant.
const TENANT: [RGBColor; TENANTS.len()] =
    [RGBColor(0xd9, 0x7b, 0x16), RGBColor(0x7a, 0x4f, 0x9e), RGBColor(0x8d, 0x8d, 0x8d)];

const SIZE: (u32, u32) = (960, 700);
const HEAD: u32 = 78;
const CAPTION: u32 = 60;

/// The height of a row of marks, as a part of the highest value.
const ROW: f64 = 0.07;

/// The data of a picture.
pub(crate) struct Course<'a> {
    /// A sentence of the caption.
    pub(crate) utilisation: Option<String>,
    pub(crate) terms: [Terms; 2],
    pub(crate) begin: Instant,
    pub(crate) left: &'a [Left],
    /// Empty without a limiter.
    pub(crate) believed: &'a [Believed],
    pub(crate) calls: &'a [Call],
}

impl Course<'_> {
    /// Returns the text of the SVG.
    pub(crate) fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let (head, rest) = area.split_vertically(HEAD);
            let (panels, below) = rest.split_vertically(SIZE.1 - HEAD - CAPTION);
            self.head(&head)?;
            for (index, panel) in panels.split_evenly((2, 1)).iter().enumerate() {
                self.panel(panel, index)?;
            }
            for (line, y) in self.caption().iter().zip((6..).step_by(22)) {
                below.draw(&Text::new(&**line, (16, y), style(15)))?;
            }
            area.present()?;
        }
        Ok(text)
    }

    fn refused(&self) -> usize {
        self.calls.iter().filter(|call| matches!(call.answer, Answer::Refused)).count()
    }

    /// Draws the title and the legend.
    fn head(&self, area: &Area) -> Done {
        let with = if self.believed.is_empty() { "without a limiter" } else { "through one AllOf" };
        area.draw(&Text::new(format!("Calls against two budgets {with}"), (16, 14), style(24)))?;
        let mut entries = vec![("server has left".to_owned(), INK, 2)];
        if !self.believed.is_empty() {
            entries.push(("callers believe to have left".to_owned(), BELIEVED, 12));
        }
        for (tenant, color) in TENANTS.iter().zip(TENANT) {
            entries.push((format!("call of {}", tenant.name), color, 8));
        }
        if self.refused() > 0 {
            entries.push(("refused with 429".to_owned(), REFUSED, 8));
        }
        let mut x = 16;
        for (label, color, height) in entries {
            let (top, bottom) = (58 - height / 2, 58 + (height + 1) / 2);
            area.draw(&Rectangle::new([(x, top), (x + 16, bottom)], color.filled()))?;
            area.draw(&Text::new(&*label, (x + 22, 51), style(15)))?;
            x += 38 + 7 * i32::try_from(label.len())?;
        }
        Ok(())
    }

    fn caption(&self) -> [String; 2] {
        let refused = self.refused();
        if self.believed.is_empty() {
            return [
                format!("{refused} of {} calls came when a budget had not enough.", self.calls.len()),
                "Each of the others took what it might use, and gave back what it did not.".into(),
            ];
        }
        let above = self.believed.iter().filter(|believed| {
            (0..2).any(|index| believed.budgets[index] > self.left_at(believed.at, index))
        });
        let first = match above.count() {
            0 => "The callers never believed to have more than the server had".to_owned(),
            above => format!("In {above} of {} looks the callers believed to have more", self.believed.len()),
        };
        [
            format!("{first}, and {refused} of {} calls were refused.", self.calls.len()),
            self.utilisation.clone().unwrap_or_default(),
        ]
    }

    fn since_begin(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.begin)
    }

    /// Returns the rest that the server had at a time.
    fn left_at(&self, at: Duration, index: usize) -> f64 {
        let next = self.left.partition_point(|left| self.since_begin(left.at) <= at);
        let Some(last) = next.checked_sub(1).map(|last| &self.left[last]) else {
            return self.terms[index].burst;
        };
        self.terms[index].refilled(last.budgets[index], at.saturating_sub(self.since_begin(last.at)))
    }

    /// Returns the rest that the server had over time, with all corners.
    fn line(&self, index: usize, end: Duration) -> Vec<(f64, f64)> {
        let Terms { per_second, burst } = self.terms[index];
        let mut points = Vec::new();
        let nexts = self.left.iter().skip(1).map(|left| self.since_begin(left.at)).chain([end]);
        for (left, next) in self.left.iter().zip(nexts) {
            let (from, to) = (self.since_begin(left.at).as_secs_f64(), next.as_secs_f64());
            let left = left.budgets[index];
            let full = from + (burst - left) / per_second;
            points.push((from, left));
            if full < to {
                points.push((full, burst));
            }
            points.push((to, (left + per_second * (to - from)).min(burst)));
        }
        points
    }

    /// Draws the panel of one budget.
    fn panel(&self, area: &Area, index: usize) -> Done {
        let end = self.calls.iter().map(|call| call.answered_at).max().unwrap_or_default();
        let (right, top) = (end.as_secs_f64().max(0.1), 1.15 * self.terms[index].burst);
        let rows = TENANTS.len() as f64 + 0.5;
        let mut chart = ChartBuilder::on(area)
            .margin_left(16)
            .margin_right(24)
            .margin_top(4)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, -rows * ROW * top..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(style(14))
            .axis_desc_style(style(15))
            .x_desc("seconds since the first call was asked for")
            .y_desc(["requests", "tokens"][index])
            .x_labels(12)
            .y_labels(7)
            .x_label_formatter(&|x| format!("{}", (x * 10.0).round() / 10.0))
            .y_label_formatter(&|y| if *y < 0.0 { String::new() } else { format!("{y:.0}") })
            .draw()?;

        let believed = self.believed.iter().filter(|believed| believed.at <= end);
        let believed: Vec<_> =
            believed.map(|believed| (believed.at.as_secs_f64(), believed.budgets[index])).collect();
        if !believed.is_empty() {
            chart.draw_series(AreaSeries::new(believed, 0.0, BELIEVED))?;
        }
        chart.draw_series([PathElement::new([(0.0, 0.0), (right, 0.0)], INK)])?;
        chart.draw_series(LineSeries::new(self.line(index, end), INK.stroke_width(1)))?;

        let short = self.calls.iter().filter(|call| call.short).map(|call| call.began_at).min();
        if let Some(short) = short.filter(|_| !self.believed.is_empty()) {
            let x = short.as_secs_f64();
            chart.draw_series([PathElement::new([(x, 0.0), (x, top)], INK.mix(0.4))])?;
            for (label, side, gap) in [("long calls", HPos::Right, -6), ("short calls", HPos::Left, 6)] {
                let style = style(14).pos(Pos::new(side, VPos::Top));
                chart.draw_series([EmptyElement::at((x, 0.98 * top)) + Text::new(label, (gap, 0), style)])?;
            }
        }
        let marks = self.calls.iter().map(|call| {
            let color = if let Answer::Refused = call.answer { REFUSED } else { TENANT[call.tenant] };
            let (x, y) = (call.began_at.as_secs_f64(), -ROW * top * (call.tenant as f64 + 0.4));
            PathElement::new([(x, y), (x, y - 0.75 * ROW * top)], color.stroke_width(2))
        });
        chart.draw_series(marks)?;
        Ok(())
    }
}

fn style(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}
