//! Draws pictures: a title, a legend, panels of curves, and a caption below.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Done = Result<(), Box<dyn Error>>;

const WIDTH: u32 = 800;
const INK: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const DEMAND: RGBColor = RGBColor(0xc4, 0xc9, 0xd1);
const GRANTED: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const SECOND: RGBColor = RGBColor(0xd9, 0x7b, 0x16);
const BAND: RGBColor = RGBColor(0xfd, 0xf1, 0xd3);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const FONT: &str = "sans-serif";

const MARGIN: u32 = 16;
const TITLE: u32 = 48;
const LEGEND: u32 = 26;
const LINE: u32 = 22;

/// The role of a curve.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Role {
    /// The demand: grey.
    Demand,
    /// The granted permits.
    Granted,
    /// Another number of that limiter.
    Second,
    /// The most that is allowed.
    Limit,
}

/// The style of a curve.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Shape {
    Filled,
    Line,
}

pub(crate) struct Curve {
    pub(crate) role: Role,
    pub(crate) shape: Shape,
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Curve {
    pub(crate) fn line(role: Role, label: &str, points: Vec<(f64, f64)>) -> Curve {
        Curve { role, shape: Shape::Line, label: label.into(), points }
    }

    pub(crate) fn filled(role: Role, label: &str, points: Vec<(f64, f64)>) -> Curve {
        Curve { shape: Shape::Filled, ..Curve::line(role, label, points) }
    }
}

/// A span of time that the caption describes.
pub(crate) struct Band {
    pub(crate) span: Range<f64>,
    pub(crate) label: String,
}

/// The horizontal axis.
#[derive(Clone, Copy)]
pub(crate) enum Axis {
    Seconds,
    /// Seconds as 1:05.
    Minutes,
    /// Permits per second.
    Asked,
}

/// One pair of axes.
pub(crate) struct Panel {
    pub(crate) x: Axis,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) unit: String,
    pub(crate) curves: Vec<Curve>,
    pub(crate) bands: Vec<Band>,
}

/// One file.
pub(crate) struct Picture {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) panel_height: u32,
    pub(crate) caption: String,
}

impl Role {
    fn color(self) -> RGBColor {
        match self {
            Role::Demand => DEMAND,
            Role::Granted => GRANTED,
            Role::Second => SECOND,
            Role::Limit => INK,
        }
    }

    fn width(self) -> u32 {
        if self == Role::Granted { 3 } else { 2 }
    }
}

/// Something that can be drawn.
pub(crate) trait Draw {
    /// Returns the text of the SVG.
    fn svg(&self) -> Result<String, Box<dyn Error>>;
}

impl Picture {
    /// Creates a picture with one panel.
    pub(crate) fn of(title: &str, panel: Panel, caption: String) -> Picture {
        Picture { title: title.into(), panels: vec![panel], panel_height: 300, caption }
    }
}

impl Draw for Picture {
    fn svg(&self) -> Result<String, Box<dyn Error>> {
        let frame = Frame {
            title: &self.title,
            caption: &self.caption,
            size: (WIDTH, u32::try_from(self.panels.len())? * self.panel_height),
        };
        frame.svg(self.panels.iter().flat_map(|panel| &panel.curves), |area| {
            for (part, panel) in area.split_evenly((self.panels.len(), 1)).iter().zip(&self.panels) {
                panel.draw(part)?;
            }
            Ok(())
        })
    }
}

/// The parts around the curves of any picture.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) caption: &'a str,
    /// The size of the inside.
    pub(crate) size: (u32, u32),
}

impl Frame<'_> {
    /// Returns the text of an SVG: title, a legend for the curves, the drawing of `draw`, and the
    /// caption.
    pub(crate) fn svg<'c>(
        &self,
        curves: impl Iterator<Item = &'c Curve>,
        draw: impl FnOnce(&Area) -> Done,
    ) -> Result<String, Box<dyn Error>> {
        let (width, height) = self.size;
        let caption = wrapped(self.caption, width);
        let below = u32::try_from(caption.len())? * LINE + MARGIN;
        let mut text = String::new();
        {
            let size = (width, TITLE + LEGEND + height + below);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            area.fill(&WHITE)?;
            let (head, rest) = area.split_vertically(TITLE + LEGEND);
            let (inside, below) = rest.split_vertically(height);
            self.head(&head, curves)?;
            draw(&inside)?;
            for (line, y) in caption.iter().zip((4..).step_by(LINE as usize)) {
                below.draw(&Text::new(&**line, (i(MARGIN), y), style(16)))?;
            }
            area.present()?;
        }
        Ok(text)
    }

    /// Draws the title and the legend, with one entry for each role.
    fn head<'c>(&self, area: &Area, curves: impl Iterator<Item = &'c Curve>) -> Done {
        area.draw(&Text::new(self.title, (i(MARGIN), 14), style(24)))?;
        let (mut x, y) = (i(MARGIN), i(TITLE));
        let mut known = Vec::new();
        for Curve { role, shape, label, .. } in curves {
            if known.contains(role) {
                continue;
            }
            known.push(*role);
            let color = role.color();
            if *shape == Shape::Filled {
                area.draw(&Rectangle::new([(x, y + 4), (x + 18, y + 16)], color.filled()))?;
            } else {
                let line = color.stroke_width(role.width());
                area.draw(&PathElement::new([(x, y + 10), (x + 18, y + 10)], line))?;
            }
            area.draw(&Text::new(&**label, (x + 24, y + 3), style(16)))?;
            x += 48 + i(text_width(label));
        }
        Ok(())
    }
}

/// Returns a text in lines that fit into a width.
fn wrapped(text: &str, width: u32) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(text) {
        let line = lines.last_mut().filter(|line| text_width(line) + text_width(&word) < width - 2 * MARGIN);
        match line {
            Some(line) if line.is_empty() => line.push_str(&word),
            Some(line) => line.extend([" ", &word]),
            None => lines.push(word),
        }
    }
    lines
}

/// Returns the words of a text. A number and the word after it are one word.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut().filter(|last| last.ends_with(|c: char| c.is_ascii_digit())) {
            Some(number) => number.extend([" ", word]),
            None => words.push(word.into()),
        }
    }
    words
}

impl Panel {
    pub(crate) fn draw(&self, area: &Area) -> Done {
        let mut chart = ChartBuilder::on(area)
            .margin_left(MARGIN)
            .margin_right(28)
            .margin_top(6)
            .margin_bottom(4)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..self.right, 0.0..self.top)?;
        let height = area.dim_in_pixel().1;
        for Band { span, .. } in &self.bands {
            let corners = [(span.start, 0.0), (span.end, self.top)];
            chart.draw_series([Rectangle::new(corners, BAND.filled())])?;
        }
        let axis = self.x;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(style(15))
            .axis_desc_style(style(15))
            .x_desc(axis.unit())
            .y_desc(&*self.unit)
            .x_labels(10)
            .y_labels(if height < 220 { 5 } else { 7 })
            .x_label_formatter(&|x| axis.write(*x))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for Curve { role, shape, label, points } in &self.curves {
            // These points would be moved to the edge, and lines would bend.
            if points.iter().any(|(x, y)| *x > self.right || *y > self.top) {
                return Err(format!("{label}: beyond the axes").into());
            }
            let (color, points) = (role.color(), points.iter().copied());
            if *shape == Shape::Filled {
                let (first, last) = (points.clone().next(), points.clone().next_back());
                let ground = [last, first].into_iter().flatten().map(|(x, _)| (x, 0.0));
                let outline: Vec<_> = points.chain(ground).collect();
                chart.draw_series([Polygon::new(outline, color.filled())])?;
            } else {
                chart.draw_series(LineSeries::new(points, color.stroke_width(role.width())))?;
            }
        }
        for Band { span, label } in &self.bands {
            let centered = style(15).pos(Pos::new(HPos::Center, VPos::Top));
            let top = (0.5 * (span.start + span.end), 0.98 * self.top);
            chart.draw_series([Text::new(label.clone(), top, centered)])?;
        }
        Ok(())
    }
}

impl Axis {
    fn unit(self) -> &'static str {
        match self {
            Axis::Seconds => "time in seconds",
            Axis::Minutes => "time in minutes and seconds",
            Axis::Asked => "asked for, per second",
        }
    }

    fn write(self, x: f64) -> String {
        match self {
            Axis::Seconds | Axis::Asked => format!("{x:.0}"),
            Axis::Minutes => format!("{:.0}:{:02.0}", (x / 60.0).floor(), x % 60.0),
        }
    }
}

pub(crate) fn style(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Returns the approximate width of a text in most fonts, rather too wide.
fn text_width(text: &str) -> u32 {
    7 * u32::try_from(text.chars().count()).unwrap_or(u32::MAX / 7)
}

/// Converts a length in pixels to a coordinate.
fn i(pixels: u32) -> i32 {
    i32::try_from(pixels).unwrap_or(i32::MAX)
}
