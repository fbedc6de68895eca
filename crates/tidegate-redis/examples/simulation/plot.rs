//! Draws panels of curves, one below the other.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

const WIDTH: u32 = 800;
const HEIGHT: u32 = 240;
const INK: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const BAND: RGBColor = RGBColor(0xfd, 0xf1, 0xd3);
/// The colors of the curves, in their order.
const COLORS: [RGBColor; 4] = [
    RGBColor(0x2a, 0x9d, 0x8f),
    RGBColor(0xd9, 0x7b, 0x16),
    RGBColor(0x6a, 0x4c, 0x93),
    RGBColor(0xc1, 0x12, 0x1f),
];

pub(crate) struct Curve {
    pub(crate) label: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A named span of the horizontal axis.
pub(crate) struct Band {
    pub(crate) span: Range<f64>,
    pub(crate) label: &'static str,
}

pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) right: f64,
    pub(crate) top: f64,
    /// A horizontal line.
    pub(crate) limit: Option<f64>,
    pub(crate) curves: Vec<Curve>,
    pub(crate) bands: Vec<Band>,
}

/// Writes an SVG, and a Markdown file that makes its name a link. rustdoc cannot store files, so
/// there the pictures are in the text.
pub(crate) fn draw(path: &Path, panels: &[Panel]) -> Result<(), Box<dyn Error>> {
    let size = (WIDTH, HEIGHT * u32::try_from(panels.len())?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        panel.draw(part)?;
    }
    area.present()?;
    drop(area);
    // A blank line would end the SVG in the text that contains it.
    let svg = fs::read_to_string(path)?.replace("\n\n", "\n");
    fs::write(path, &svg)?;
    let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    fs::write(path.with_extension("md"), format!("[{name}]: data:image/svg+xml,{}\n", escaped(&svg)))?;
    Ok(())
}

/// Escapes an SVG as a part of a link.
fn escaped(svg: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/:=,;!*".contains(&byte);
    let percent = |byte: u8| if is_plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
    svg.bytes().map(percent).collect()
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), Box<dyn Error>> {
        let style = |size: u32| ("sans-serif", size).into_font().color(&INK);
        area.draw(&Text::new(self.title, (16, 8), style(17)))?;
        let mut x = 16;
        for (curve, color) in self.curves.iter().zip(COLORS) {
            area.draw(&PathElement::new([(x, 38), (x + 18, 38)], color.stroke_width(3)))?;
            area.draw(&Text::new(curve.label, (x + 24, 31), style(14)))?;
            x += 44 + 7 * i32::try_from(curve.label.len())?;
        }
        let mut chart = ChartBuilder::on(area)
            .margin_right(24)
            .margin_top(52)
            .x_label_area_size(38)
            .y_label_area_size(66)
            .build_cartesian_2d(0.0..self.right, 0.0..self.top)?;
        for Band { span, label } in &self.bands {
            let corners = [(span.start, 0.0), (span.end, self.top)];
            chart.draw_series([Rectangle::new(corners, BAND.filled())])?;
            chart.draw_series([Text::new(*label, (span.start, 0.98 * self.top), style(13))])?;
        }
        // Small numbers keep their digits.
        let digits = if self.top < 5.0 { 2 } else { 0 };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(style(13))
            .x_desc(self.x)
            .y_labels(5)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y:.digits$}"))
            .draw()?;
        if let Some(limit) = self.limit {
            chart.draw_series(LineSeries::new([(0.0, limit), (self.right, limit)], INK.stroke_width(1)))?;
        }
        for (curve, color) in self.curves.iter().zip(COLORS) {
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?;
        }
        Ok(())
    }
}
