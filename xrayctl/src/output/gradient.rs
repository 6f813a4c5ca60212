//! Gradients of colours, mixed along the hue as in llvm-xray.

/// From pale to dark red: ColorBrewer's OrRd.
const RISING: [[u8; 3]; 9] = [
    [255, 247, 236],
    [254, 232, 200],
    [253, 212, 158],
    [253, 187, 132],
    [252, 141, 89],
    [239, 101, 72],
    [215, 48, 31],
    [179, 0, 0],
    [127, 0, 0],
];

/// From pink over white to green: ColorBrewer's PiYG.
const DIVERGING: [[u8; 3]; 11] = [
    [142, 1, 82],
    [197, 27, 125],
    [222, 119, 174],
    [241, 182, 218],
    [253, 224, 239],
    [247, 247, 247],
    [230, 245, 208],
    [184, 225, 134],
    [127, 188, 65],
    [77, 146, 33],
    [39, 100, 25],
];

/// The colour of a share of the greatest value, from 0 to 1.
pub(crate) fn rising(share: f64) -> String {
    mix(&RISING, share)
}

/// The colour of a relative change, from -1 to 1. Greater changes count as these.
pub(crate) fn diverging(change: f64) -> String {
    mix(&DIVERGING, (change + 1.0) / 2.0)
}

/// The colour at `at`, from 0 to 1, between colours at equal distances. NaN counts as 0.
fn mix(colours: &[[u8; 3]], at: f64) -> String {
    let at = if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) };
    let last = colours.len() - 1;
    let mut before = 0;
    while before + 1 < last && (before + 1) as f64 <= at * last as f64 {
        before += 1;
    }
    let part = at * last as f64 - before as f64;
    let (from, to) = (hsv(colours[before]), hsv(colours[before + 1]));
    let mixed = [
        mix_hue(from[0], to[0], part),
        from[1] + part * (to[1] - from[1]),
        from[2] + part * (to[2] - from[2]),
    ];
    let [red, green, blue] = rgb(mixed);
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Hue in degrees, saturation and value from 0 to 1.
fn hsv(colour: [u8; 3]) -> [f64; 3] {
    let [red, green, blue] = colour.map(|part| f64::from(part) / 255.0);
    let value = red.max(green).max(blue);
    let range = value - red.min(green).min(blue);
    let sixths = if range == 0.0 {
        0.0
    } else if value == red {
        ((green - blue) / range).rem_euclid(6.0)
    } else if value == green {
        (blue - red) / range + 2.0
    } else {
        (red - green) / range + 4.0
    };
    let saturation = if value == 0.0 { 0.0 } else { range / value };
    [sixths * 60.0, saturation, value]
}

/// The hue between two hues, on the shorter way round.
fn mix_hue(from: f64, to: f64, part: f64) -> f64 {
    let way = (to - from + 540.0).rem_euclid(360.0) - 180.0;
    (from + part * way).rem_euclid(360.0)
}

fn rgb([hue, saturation, value]: [f64; 3]) -> [u8; 3] {
    let range = value * saturation;
    [5.0, 3.0, 1.0].map(|offset| {
        let at = (offset + hue / 60.0).rem_euclid(6.0);
        let part = value - range * at.min(4.0 - at).clamp(0.0, 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is from 0.5 to 255.5"
        )]
        let part = (part.clamp(0.0, 1.0) * 255.0 + 0.5) as u8;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of llvm-xray for these values.
    #[test]
    fn colours_are_those_of_llvm_xray() {
        for (share, expected) in [
            (0.0, "#FFF7EC"),
            (f64::NAN, "#FFF7EC"),
            ((70.0_f64 / 1000.0).sqrt(), "#FDD19B"),
            ((190.0_f64 / 1000.0).sqrt(), "#FDA66F"),
            ((50.0_f64 / 1000.0).sqrt(), "#FDD8A7"),
            (1.0, "#7F0000"),
        ] {
            assert_eq!(rising(share), expected, "{share}");
        }
        for (change, expected) in [
            (-1.0, "#8E0152"),
            (-0.008, "#F7F6F6"),
            (0.0, "#F7F7F7"),
            (1.0, "#276419"),
            (7.0, "#276419"),
        ] {
            assert_eq!(diverging(change), expected, "{change}");
        }
    }
}
