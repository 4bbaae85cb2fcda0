// Level Zero, as far as the C++ code of AOTInductor's packages for XPU names it: enough to compile that code.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint32_t ze_result_t;
#define ZE_RESULT_SUCCESS 0

typedef struct _ze_context_handle_t* ze_context_handle_t;
typedef struct _ze_device_handle_t* ze_device_handle_t;
typedef struct _ze_module_handle_t* ze_module_handle_t;
typedef struct _ze_kernel_handle_t* ze_kernel_handle_t;
typedef struct _ze_module_build_log_handle_t* ze_module_build_log_handle_t;

typedef enum { ZE_STRUCTURE_TYPE_MODULE_DESC, ZE_STRUCTURE_TYPE_KERNEL_DESC } ze_structure_type_t;
typedef enum { ZE_MODULE_FORMAT_IL_SPIRV, ZE_MODULE_FORMAT_NATIVE } ze_module_format_t;
enum { ZE_KERNEL_FLAG_FORCE_RESIDENCY = 1 };

typedef struct {
  ze_structure_type_t stype;
  const void* pNext;
  ze_module_format_t format;
  size_t inputSize;
  const uint8_t* pInputModule;
  const char* pBuildFlags;
} ze_module_desc_t;

typedef struct {
  ze_structure_type_t stype;
  const void* pNext;
  uint32_t flags;
  const char* pKernelName;
} ze_kernel_desc_t;

#ifdef __cplusplus
extern "C" {
#endif
ze_result_t zeModuleCreate(ze_context_handle_t, ze_device_handle_t, const ze_module_desc_t*, ze_module_handle_t*,
                           ze_module_build_log_handle_t*);
ze_result_t zeModuleBuildLogGetString(ze_module_build_log_handle_t, size_t*, char*);
ze_result_t zeModuleBuildLogDestroy(ze_module_build_log_handle_t);
ze_result_t zeKernelCreate(ze_module_handle_t, const ze_kernel_desc_t*, ze_kernel_handle_t*);
#ifdef __cplusplus
}
#endif
