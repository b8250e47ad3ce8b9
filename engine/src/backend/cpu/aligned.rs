//! Activations that begin where a cache line does, so that rows of whole lines share none.

use std::ops::{Deref, DerefMut};

/// A cache line of numbers.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct CacheLine([f32; 16]);

/// A growing array of `f32`.
#[derive(Default)]
pub(super) struct Aligned {
    lines: Vec<CacheLine>,
    len: usize,
}

impl Aligned {
    /// Makes room for so many numbers. What was in it may stay; memory is never given back, so that a step allocates only
    /// where it is the largest so far.
    pub(super) fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(16);
        if lines > self.lines.len() {
            self.lines.resize(lines, CacheLine::default());
        }
        self.len = len;
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: lines are arrays of `f32` without gaps, and there are enough of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
