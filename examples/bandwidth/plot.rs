//! The bytes of each connection over time, as an SVG.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::{Arguments, Measured};

const GREEDY: RGBColor = RGBColor(0xd6, 0x45, 0x50);
const OTHER: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const TEXT: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);

/// Draws the courses of all connections, one picture for each measured way.
pub(crate) fn draw(
    file: &Path,
    arguments: &Arguments,
    ways: &[(&str, Measured)],
) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(file, (960, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "{} connections share {} MB/s, {} of them are greedy",
        arguments.connections,
        f64::from(arguments.rate) / 1e6,
        arguments.greedy,
    );
    let area = area.titled(&title, ("sans-serif", 22).into_font().color(&TEXT))?;
    let most = ways.iter().flat_map(|(_, way)| way.by(Duration::MAX)).max().unwrap_or_default() as f64 / 1e6;
    for (part, (name, measured)) in area.split_evenly((1, ways.len().max(1))).iter().zip(ways) {
        draw_way(part, arguments, name, measured, most)?;
    }
    area.present()?;
    Ok(())
}

/// Draws the greedy connections in another color.
fn draw_way(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    arguments: &Arguments,
    name: &str,
    measured: &Measured,
    most: f64,
) -> Result<(), Box<dyn Error>> {
    let right = measured.took.as_secs_f64();
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 18, &TEXT))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(0.0..right, 0.0..most * 1.05)?;
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
    // Greedy connections are drawn last, so that they are visible where the lines meet.
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
    Ok(())
}
