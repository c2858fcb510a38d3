// Sums over the pixels of images, for batch normalisation, as custom calls of XLA.
//
// Images are [B, H, W, K] in float32; axes in front of these are clients, which take turns. Sums of an image are
// float32, sums of these float64; a call runs on its own thread alone.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Buffer = ffi::Buffer<ffi::F32>;
using Mask = ffi::Buffer<ffi::PRED>;
using Sums = std::vector<double>;

#ifdef __x86_64__
#define FOR_EACH_VECTOR_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_VECTOR_WIDTH
#endif

namespace {

// The loops below run over rows of numbers, each of several pixels, so that many sums grow at a time.

FOR_EACH_VECTOR_WIDTH void add(const float* x, int64_t rows, int64_t width, float* __restrict__ sum) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; ++j) sum[j] += x[i * width + j];
}

FOR_EACH_VECTOR_WIDTH void add_squares(const float* x, const float* centre, int64_t rows, int64_t width,
                                       float* __restrict__ sum) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; ++j) sum[j] += (x[i * width + j] - centre[j]) * (x[i * width + j] - centre[j]);
}

FOR_EACH_VECTOR_WIDTH void add_products(const float* x, const float* centre, const float* g, int64_t rows,
                                        int64_t width, float* __restrict__ slope, float* __restrict__ total) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; ++j) {
      slope[j] += g[i * width + j] * (x[i * width + j] - centre[j]);
      total[j] += g[i * width + j];
    }
}

// The sizes of a buffer of images.
struct Sizes {
  int64_t clients = 1, batch, pixels, channels, together = 8;  // pixels of a row of the loops above

  explicit Sizes(const Buffer& images) {
    const auto all = images.dimensions();
    const size_t front = all.size() - 4;
    for (size_t axis = 0; axis < front; ++axis) clients *= all[axis];
    batch = all[front], pixels = all[front + 1] * all[front + 2], channels = all[front + 3];
    while (pixels % together) together /= 2;
  }

  int64_t image() const { return pixels * channels; }
  int64_t rows() const { return pixels / together; }
  int64_t width() const { return together * channels; }

  // One value a channel, for each pixel of a row.
  template <typename T>
  std::vector<float> repeat(const T* values) const {
    std::vector<float> repeated;
    for (int64_t i = 0; i < together; ++i) repeated.insert(repeated.end(), values, values + channels);
    return repeated;
  }

  // The sums of a row's pixels by channel, which start again from 0.
  Sums take(std::vector<float>& row) const {
    Sums taken(channels);
    for (int64_t i = 0; i < together; ++i)
      for (int64_t j = 0; j < channels; ++j) taken[j] += row[i * channels + j];
    std::fill(row.begin(), row.end(), 0.0f);
    return taken;
  }
};

// Mean and biased variance of the real images. Each image is read twice while it is in the cache, and joins the others
// by the formula of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
// Variances", COMPSTAT 1982.
ffi::Error find_moments(Buffer images, Mask real, ffi::Result<Buffer> mean, ffi::Result<Buffer> var) {
  const Sizes sizes(images);
  std::vector<float> row(sizes.width());
  for (int64_t client = 0; client < sizes.clients; ++client) {
    Sums centre(sizes.channels), squares(sizes.channels);
    double seen = 0;
    for (int64_t i = client * sizes.batch; i < (client + 1) * sizes.batch; ++i) {
      if (!real.typed_data()[i]) continue;
      const float* image = images.typed_data() + i * sizes.image();
      add(image, sizes.rows(), sizes.width(), row.data());
      Sums own = sizes.take(row);
      for (double& value : own) value /= sizes.pixels;
      add_squares(image, sizes.repeat(own.data()).data(), sizes.rows(), sizes.width(), row.data());
      const Sums inside = sizes.take(row);
      for (int64_t j = 0; j < sizes.channels; ++j) {
        const double gap = own[j] - centre[j];
        squares[j] += inside[j] + gap * gap * sizes.pixels * seen / (seen + 1);
        centre[j] += gap / (seen + 1);
      }
      ++seen;
    }
    const double count = std::max(seen * sizes.pixels, 1.0);
    for (int64_t j = 0; j < sizes.channels; ++j) {
      mean->typed_data()[client * sizes.channels + j] = centre[j];
      var->typed_data()[client * sizes.channels + j] = squares[j] / count;
    }
  }
  return ffi::Error::Success();
}

// Sums of g (x - centre) and of g, for cotangents g.
ffi::Error find_slopes(Buffer images, Buffer centre, Buffer cotangent, ffi::Result<Buffer> slope,
                       ffi::Result<Buffer> total) {
  const Sizes sizes(images);
  std::vector<float> slope_row(sizes.width()), total_row(sizes.width());
  for (int64_t client = 0; client < sizes.clients; ++client) {
    const int64_t start = client * sizes.channels;
    const auto around = sizes.repeat(centre.typed_data() + start);
    Sums slopes(sizes.channels), totals(sizes.channels);
    for (int64_t i = client * sizes.batch; i < (client + 1) * sizes.batch; ++i) {
      const int64_t at = i * sizes.image();
      add_products(images.typed_data() + at, around.data(), cotangent.typed_data() + at, sizes.rows(), sizes.width(),
                   slope_row.data(), total_row.data());
      const Sums slope_of_image = sizes.take(slope_row), total_of_image = sizes.take(total_row);
      for (int64_t j = 0; j < sizes.channels; ++j) slopes[j] += slope_of_image[j], totals[j] += total_of_image[j];
    }
    std::copy(slopes.begin(), slopes.end(), slope->typed_data() + start);
    std::copy(totals.begin(), totals.end(), total->typed_data() + start);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(moments, find_moments, ffi::Ffi::Bind().Arg<Buffer>().Arg<Mask>().Ret<Buffer>().Ret<Buffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(slopes, find_slopes,
                              ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Ret<Buffer>());
