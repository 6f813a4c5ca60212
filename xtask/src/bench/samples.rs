//! Repeated measurements of one thing. Units are up to the sections.

/// The measured values, in the order of the measurements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

// === impl Samples ===

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle value, or the mean of both middle ones of an even number; not a number if there
    /// is none.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        let half = sorted.len() / 2;
        match (sorted.get(half), sorted.len() % 2) {
            (Some(&middle), 1) => middle,
            (Some(&upper), _) => f64::midpoint(sorted[half - 1], upper),
            (None, _) => f64::NAN,
        }
    }

    /// The smallest; not a number if there is none.
    pub(crate) fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    /// The largest; not a number if there is none.
    pub(crate) fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_samples() {
        for (values, min, median, max) in [
            (&[3.0][..], 3.0, 3.0, 3.0),
            (&[4.0, 1.0], 1.0, 2.5, 4.0),
            (&[9.0, 1.0, 2.0], 1.0, 2.0, 9.0),
        ] {
            let samples: Samples = values.iter().copied().collect();
            let found = [samples.min(), samples.median(), samples.max()];
            assert_eq!(found, [min, median, max], "{values:?}");
        }
        assert!(Samples::default().median().is_nan());
    }
}
