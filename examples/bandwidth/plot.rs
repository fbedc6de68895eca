//! The bytes of each connection over time, as an SVG.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::{Arguments, Measured};

const GREEDY: RGBColor = RGBColor(0xd6, 0x45, 0x50);
const OTHER: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const TEXT: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);

/// Draws the courses of all connections, and the greedy ones in another colour.
pub(crate) fn draw(file: &Path, arguments: &Arguments, measured: &Measured) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(file, (960, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let right = measured.took.as_secs_f64();
    let share = f64::from(arguments.rate) * right / arguments.connections.max(1) as f64 / 1e6;
    let title = format!(
        "{} connections share {} MB/s, {} of them are greedy",
        arguments.connections,
        f64::from(arguments.rate) / 1e6,
        arguments.greedy,
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22, &TEXT))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(0.0..right, 0.0..share * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(TEXT)
        .label_style(("sans-serif", 14, &TEXT))
        .x_desc("seconds")
        .y_desc("MB that came over a connection")
        .draw()?;
    // Greedy ones last, so that they are seen where the lines meet.
    for (index, course) in measured.courses.iter().enumerate().rev() {
        let (color, name) = match index < arguments.greedy {
            true => (GREEDY, "greedy"),
            false => (OTHER, "not greedy"),
        };
        let points = course.iter().map(|(at, bytes)| (at.as_secs_f64(), *bytes as f64 / 1e6));
        let line = chart.draw_series(LineSeries::new(points, color.stroke_width(1)))?;
        if index == 0 || index == arguments.greedy {
            line.label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3)));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14, &TEXT))
        .border_style(FAINT)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
