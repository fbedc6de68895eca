//! The timeline of a run as an SVG.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plotters::prelude::*;
use tidegate::Rate;

use crate::client::{Answer, Call};

/// The layers of a bar, from the bottom.
const LAYERS: [(&str, RGBColor); 3] = [
    ("accepted", RGBColor(0x2a, 0x9d, 0x8f)),
    ("refused with 429", RGBColor(0xd6, 0x45, 0x50)),
    ("failed", RGBColor(0x8d, 0x8d, 0x8d)),
];
const LIMIT: RGBColor = RGBColor(0x1d, 0x2d, 0x44);
const FAINT: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);

/// Widths of a bin in milliseconds.
const WIDTHS: [u32; 9] = [10, 20, 50, 100, 200, 500, 1000, 10_000, 60_000];

/// The most bins that can be distinguished.
const BINS: u32 = 150;

/// The responses of one bin, by layer.
type Bin = [u32; LAYERS.len()];

/// Draws the responses over time as stacked bars against the limit.
pub(crate) fn draw(file: &Path, title: &str, calls: &[Call], limit: Rate) -> Result<(), Box<dyn Error>> {
    let end = calls.iter().map(|call| call.answered_at).max().unwrap_or_default();
    let width = WIDTHS.map(|ms| Duration::from_millis(ms.into()));
    let width = width.into_iter().find(|width| end < *width * BINS).unwrap_or(end / BINS);
    let bins = count(calls, width);
    let limit_per_second = limit.as_per_second();

    // The height of a bar is the rate of its bin, so the limit is one line for any width.
    let rate = |count: u32| f64::from(count) / width.as_secs_f64();
    let highest = bins.iter().map(|bin| rate(bin.iter().sum())).fold(0.0, f64::max);
    let top = 1.35 * highest.max(limit_per_second);
    let right = width.as_secs_f64() * bins.len() as f64;

    let area = SVGBackend::new(file, (960, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22, &LIMIT))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(LIMIT)
        .label_style(("sans-serif", 14, &LIMIT))
        .x_desc("seconds since the first task started")
        .y_desc(format!("answers per second, in bins of {width:?}"))
        .x_labels(12)
        .y_labels(7)
        .x_label_formatter(&|x| format!("{}", (x * 1000.0).round() / 1000.0))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;

    let mut bases = vec![0.0; bins.len()];
    for (layer, (label, color)) in LAYERS.into_iter().enumerate() {
        let total: u32 = bins.iter().map(|bin| bin[layer]).sum();
        if total == 0 {
            continue;
        }
        let bars = bins.iter().zip(&mut bases).enumerate().map(|(index, (bin, base))| {
            let left = width.as_secs_f64() * index as f64;
            let from = *base;
            *base += rate(bin[layer]);
            // A gap between the bars, so that they can be counted.
            let gap = 0.08 * width.as_secs_f64();
            Rectangle::new([(left + gap, from), (left + width.as_secs_f64() - gap, *base)], color.filled())
        });
        chart
            .draw_series(bars)?
            .label(format!("{total} {label}"))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 16, y + 5)], color.filled()));
    }
    chart
        .draw_series(LineSeries::new(
            [(0.0, limit_per_second), (right, limit_per_second)],
            LIMIT.stroke_width(2),
        ))?
        .label(format!("limit, {limit}"))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], LIMIT.stroke_width(2)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(FAINT)
        .label_font(("sans-serif", 14, &LIMIT))
        .draw()?;
    area.present()?;
    Ok(())
}

fn count(calls: &[Call], width: Duration) -> Vec<Bin> {
    let mut bins = Vec::new();
    for call in calls {
        // At most `BINS`.
        #[allow(clippy::cast_possible_truncation)]
        let index = call.answered_at.div_duration_f64(width) as usize;
        if index >= bins.len() {
            bins.resize(index + 1, Bin::default());
        }
        let layer = match call.answer {
            Answer::Success => 0,
            Answer::Refused => 1,
            Answer::Failed(_) => 2,
        };
        bins[index][layer] += 1;
    }
    bins
}
