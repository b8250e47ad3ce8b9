//! Place holder.
